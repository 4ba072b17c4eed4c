"""What every report shows, as data; and how it becomes text, SARIF and an HTML page."""

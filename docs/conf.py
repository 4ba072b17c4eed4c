"""Sphinx configuration."""

import detmode

project = "detmode"
author = "the detmode developers"
project_copyright = author
release = version = detmode.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "detmode"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
# Types are named as they are written; not all of them have a page.
nitpicky = False
# What the button copies can be pasted: without prompts and output.
copybutton_prompt_text = "$ "
html_static_path = ["_static"]
html_css_files = ["tables.css"]

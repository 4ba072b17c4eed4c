"""The doctor's findings by subject."""

from detmode.environment.doctor import Finding, findings


def finding(subject: str) -> Finding:
    (found,) = [each for each in findings() if each.subject == subject]
    return found

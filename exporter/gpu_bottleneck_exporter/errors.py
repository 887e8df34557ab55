"""Errors that the user can fix, each in one sentence."""


def printable(text: str, max_characters: int | None = None) -> str:
    """Replace characters that move a cursor or hide text, and truncate.

    Jobs choose mount points and names of file systems.
    """
    cut = text[:max_characters]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


class ExporterError(Exception):
    """An error that ends a command with `status`, and one line on stderr."""

    status = 1


class SettingsError(ExporterError):
    """An invalid setting, which a restart cannot fix."""

    status = 2

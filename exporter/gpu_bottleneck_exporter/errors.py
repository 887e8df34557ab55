"""Errors that a user can fix, each in one plain sentence."""


def printable(text: str, most: int | None = None) -> str:
    """`text`, without characters that move a cursor or hide text, cut to `most` characters.

    A job may mount where it likes, and name a FUSE file system's type as it likes.
    """
    cut = text[:most]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


class ExporterError(Exception):
    """Ends a command: its message goes to stderr as one line, and the exit status is `status`."""

    status = 1


class SettingsError(ExporterError):
    """A setting is invalid: restarting with the same ones cannot help."""

    status = 2

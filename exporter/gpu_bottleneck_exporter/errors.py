"""What a user can put right, told in one plain sentence."""


class ExporterError(Exception):
    """Ends a command: the message goes to stderr as one line, the exit status is `status`."""

    status = 1


class SettingsError(ExporterError):
    """A setting makes no sense: starting again with the same ones cannot help."""

    status = 2

"""What a user can put right, told in one plain sentence."""


class ExporterError(Exception):
    """Ends a command: the message goes to stderr as one line, the exit status is not zero."""

"""What carries out the commands of the command line."""

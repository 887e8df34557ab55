"""The processes that feed a GPU: who they are, what they do, what they used."""

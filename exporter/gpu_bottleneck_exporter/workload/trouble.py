"""Why it is not told what the kubelet has assigned, or by no name, and what to do about it."""

from __future__ import annotations


class KubeletTrouble(Exception):  # noqa: N818 - mostly no error: a kubelet restarts
    """One plain sentence, and its remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy


UNWELL = "it is asked again, with growing pauses; if it lasts, look into the kubelet's log"
ROOT_ONLY = "the socket is root's: run the exporter as user 0; it takes no capability"
MOUNT = (
    "mount the host's folder /var/lib/kubelet/pod-resources (the folder: a kubelet that restarts "
    "makes a new socket) and name the socket with --kubelet.socket"
)
LINKS = (
    "mount the host's folder /var/log/containers, whose links have the names of containers (no log "
    "is opened), and name it with --kubelet.container-logs"
)
INSTALL = "pip install 'gpu-bottleneck-exporter[kubernetes]'"
UPGRADE = "the API is that of Kubernetes 1.20 and later; is it the kubelet's socket?"

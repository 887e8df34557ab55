"""Why allocations or names from the kubelet are missing, and what to do about it."""

from __future__ import annotations


class KubeletTrouble(Exception):  # noqa: N818 - mostly not an error: a kubelet restarts
    """One plain sentence, and its remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy


UNWELL = "it is retried with growing pauses; if this lasts, see the kubelet's log"
ROOT_ONLY = "root owns the socket: run the exporter as user 0; no capability is needed"
MOUNT = (
    "mount the host's folder /var/lib/kubelet/pod-resources (the folder, because a kubelet that "
    "restarts creates a new socket) and name the socket with --kubelet.socket"
)
LINKS = (
    "mount the host's folder /var/log/containers, whose links carry the names of containers (no "
    "log is opened), and name it with --kubelet.container-logs"
)
INSTALL = "pip install 'gpu-bottleneck-exporter[kubernetes]'"
UPGRADE = "check that it is the kubelet's socket; the API exists since Kubernetes 1.20"

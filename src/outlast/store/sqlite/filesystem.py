"""Which file system a path lies on: WAL needs shared memory and honest locks, which network file systems do not have."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb2",
        "smb3",
        "smbfs",
    }
)
_MOUNTS = Path("/proc/self/mounts")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_filesystem(path: Path, mounts: str | None = None) -> str:
    """Return the type of the network file system that `path` lies on, or an empty string for a local one.

    Args:
        mounts: Text in the form of `/proc/self/mounts`, read from there when None. Where there is none, all is local.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    place = PurePosixPath(path)
    found, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = PurePosixPath(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        depth = len(point.parts)
        # A later mount on the same point hides the earlier one.
        if depth >= found and (place == point or point in place.parents):
            found, kind = depth, fields[2]
    return kind if kind in _NETWORK else ""

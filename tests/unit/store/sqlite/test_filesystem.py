"""Which file systems are refused."""

from pathlib import Path

import pytest

from outlast.store.sqlite.filesystem import network_filesystem

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local xfs rw 0 0
//nas/my /mnt/my\\040share cifs rw 0 0
tmpfs /over tmpfs rw 0 0
me@host:/ /over fuse.sshfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/a.db", ""),
        ("/home/me/a.db", "nfs4"),
        ("/homework/a.db", ""),
        ("/home/local/a.db", ""),
        ("/mnt/my share/a.db", "cifs"),
        ("/over/a.db", "fuse.sshfs"),
    ],
)
def test_deepest_mount_decides(path, kind):
    """The deepest mount above a path decides, the later one where two share a point."""
    assert network_filesystem(Path(path), MOUNTS) == kind


def test_this_machine_is_read(tmp_path):
    """Without a text the machine's own mounts are read."""
    assert network_filesystem(tmp_path) == ""

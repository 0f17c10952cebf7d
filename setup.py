"""A source distribution that is the same bytes each time; the metadata is in pyproject.toml."""

import gzip
import os
import tarfile
import time
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist


class Sdist(sdist):
    """The archive has one date, SOURCE_DATE_EPOCH, and no owner; setuptools keeps what it finds."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def bare(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", epoch
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            return info

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted(Path(base_dir).rglob("*")):
                archive.add(name, recursive=False, filter=bare)
        return path


setup(cmdclass={"sdist": Sdist})

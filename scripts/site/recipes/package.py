"""Spack: copy to REPOSITORY/packages/py-nopfsfs/package.py. fusermount3 is the node's: it must be setuid root."""

from spack.package import *


class PyNopfsfs(PythonPackage):
    """A FUSE file system that knows the future: clairvoyant prefetching for training jobs"""

    version("0.1.0")
    license("MIT")

    variant("mpi", default=False, description="Several nodes share their memories")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-pyfuse3@3.4:", type=("build", "run"))
    depends_on("py-trio@0.25:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-xxhash@3.4:", type=("build", "run"))
    depends_on("py-msgspec@0.20:", type=("build", "run"))
    depends_on("py-tqdm@4.66:", type=("build", "run"))
    depends_on("py-tomli@2.0:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-mpi4py@4.1:", type=("build", "run"), when="+mpi")

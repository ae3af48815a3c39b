# SPDX-License-Identifier: Apache-2.0
"""
Settings that pyproject.toml cannot express: the version, which is configure.ac's, and the extension, which
build_native.py describes.

$SPARSEKV_BUILD names a build directory of the source tree to link against (and to run from: the path is stored in the
extension). Without it, ../build is used if it exists, and otherwise an installed library, found by pkg-config.
"""
import re
from pathlib import Path

from setuptools import setup

configure = (Path(__file__).parent / "../configure.ac").resolve()
version = re.search(r"AC_INIT\(\[[^]]*\],\s*\[([^]]*)\]", configure.read_text(encoding="utf-8")).group(1)

setup(version=version, cffi_modules=["build_native.py:ffi"])

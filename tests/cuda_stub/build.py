"""Compiles the stub libraries: python build.py SITE, where SITE holds torch's CUDA build and nvidia-cuda-runtime.

What is needed is read off torch itself: the libraries that its own name as needed, and the functions that they leave
undefined. Those written by hand in src/ are taken from there; every other one becomes a function that returns 0. The
result lies in SITE/nvidia/cu13/lib, where torch looks first, so no preloading is needed.
"""

import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent / "src"
FLAGS = ["-O2", "-fPIC", "-fno-builtin", "-Wall", "-Wno-unused-parameter", "-Wno-deprecated-declarations"]

# library (its name up to ".so"): the files that are written by hand
WRITTEN = {
    "libcudart": ["runtime_device.c", "runtime_memory.c", "runtime_streams.c"],
    "libcublas": ["cublas.c"],
    "libcublasLt": ["cublasLt.c"],
    "libcudnn": ["cudnn.c"],
}
DRIVER = ["environment.c", "memory.c", "attributes.c", "driver.c"]

# A few libraries give their symbols no version of their own: the beginning of the name tells where a function belongs.
# Longer ones come first: cublasLt before cublas.
PREFIXES = {
    "cusparseLt": "libcusparseLt", "cublasLt": "libcublasLt", "cusolver": "libcusolver", "cusparse": "libcusparse",
    "nvshmem": "libnvshmem_host", "cublas": "libcublas", "cuFile": "libcufile", "cudnn": "libcudnn",
    "curand": "libcurand", "cufft": "libcufft", "cupti": "libcupti", "nccl": "libnccl", "nvrtc": "libnvrtc",
}  # fmt: skip
VERSION_NODES = {"libnvshmem_host": "NVSHMEM"}  # all others are named like their file


def output(*command: object) -> str:
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def needs_of(libraries: list[pathlib.Path]) -> tuple[list[str], dict[str, set[str]]]:
    """Names of NVIDIA's libraries that torch's need, and what these leave undefined: version node -> functions."""
    needed: set[str] = set()
    undefined: dict[str, set[str]] = {}
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", library)))
        for line in output("nm", "-D", "--undefined-only", library).splitlines():
            function, _, version = line.split()[-1].partition("@")
            undefined.setdefault(version.lstrip("@"), set()).add(function)
    return sorted(n for n in needed if re.match(r"lib(cu|nccl|nvrtc|nvshmem|nvJit|nvTool)", n)), undefined


def functions_of(library: str, undefined: dict[str, set[str]]) -> tuple[set[str], str]:
    """What a library must define, and under which version node (none: "")."""
    base = library.split(".so")[0]
    node = VERSION_NODES.get(base, library)
    functions = set(undefined.get(node, ()))
    for function in undefined.get("", ()):
        owner = next((PREFIXES[p] for p in PREFIXES if function.startswith(p)), None)
        if owner == base:
            functions.add(function)
    return functions, node if undefined.get(node) else ""


class Builder:
    def __init__(self, site: pathlib.Path):
        (headers,) = site.glob("nvidia/cu*/include")
        self.flags = [*FLAGS, f"-I{SOURCE}", f"-I{headers}"]
        self.out = headers.parent / "lib"
        self.scratch = self.out / "build"
        self.scratch.mkdir(parents=True, exist_ok=True)

    def compile(self, name: str) -> pathlib.Path:
        target = self.scratch / f"{name}.o"
        output("gcc", *self.flags, "-c", SOURCE / name, "-o", target)
        return target

    def link(self, name: str, objects: list, generated: set[str], node: str = "") -> None:
        """A shared library of these objects and of functions that return 0.

        It finds the others beside itself, before anything that the system has (old dtags: even LD_LIBRARY_PATH).
        """
        lines = [f"int {function}(void) {{ HIT(); return 0; }}\n" for function in sorted(generated)]
        source = self.scratch / f"{name}.c"
        source.write_text('#include "stub.h"\n' + "".join(lines))
        versions = self.scratch / f"{name}.map"
        versions.write_text(f"{node} {{ global: *; }};\n")
        driver = [self.out / "libcuda.so.1"] if name != "libcuda.so.1" else []
        output(
            "gcc", *self.flags, "-shared", f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}",
            "-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags", "-o", self.out / name, *objects, source, *driver,
            "-ldl", "-lpthread",
        )  # fmt: skip


def main(site: pathlib.Path) -> None:
    needed, undefined = needs_of([*site.glob("torch/lib/*.so*"), *site.glob("torch/_C*.so")])
    builder = Builder(site)
    builder.link("libcuda.so.1", [builder.compile(name) for name in DRIVER], set())
    builder.link("libnvidia-ml.so.1", [builder.compile("nvml.c")], set())
    print(f"{'library':24} {'needed':>8} {'by hand':>8} {'returning 0':>12}")
    for name in needed:
        if name == "libcuda.so.1":
            continue
        functions, node = functions_of(name, undefined)
        objects = [builder.compile(file) for file in WRITTEN.get(name.split(".so")[0], [])]
        defined = {line.split()[-1] for o in objects for line in output("nm", "--defined-only", o).splitlines()}
        builder.link(name, objects, functions - defined, node)
        by_hand = len(functions & defined)
        print(f"{name:24} {len(functions):8} {by_hand:8} {len(functions) - by_hand:12}  {node}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())

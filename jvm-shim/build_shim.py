"""Build of the JVM shim against the jars of an installed PySpark.

PySpark's jars hold the Scala compiler and all dependencies, so the only other requirement is a Java 17
runtime. Run as a script, or from the wheel's build hook:

    python jvm-shim/build_shim.py            the jar that the wheel ships
    python jvm-shim/build_shim.py --tests    also the jar that tests and benchmarks use
    python jvm-shim/build_shim.py --lint     compile both, every warning an error, write nothing

A jar fits one minor version of Spark: that of the PySpark which the interpreter finds. The wheel's hook also
builds that of the PySpark in the environment that pip installs into.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

SHIM = Path(__file__).resolve().parent
ROOT = SHIM.parent
PACKAGE = ROOT / "spark_statestore"
OLDEST_JAVA = 17
# Without importing the package, which needs its dependencies.
_VERSIONS = runpy.run_path(str(PACKAGE / "_version.py"))
SUPPORTED_SPARK: tuple[str, ...] = _VERSIONS["SUPPORTED_SPARK"]
minor_of: Callable[[str], str] = _VERSIONS["minor_of"]

_DIGEST_ENTRY = "META-INF/spark-statestore.digest"
_HISTORY_ENTRY = "META-INF/services/org.apache.spark.status.AppHistoryServerPlugin"
_PROPERTIES_ENTRY = "spark-statestore.properties"
_LICENSE_ENTRY = "META-INF/LICENSE"
_MANIFEST_ENTRY = "META-INF/MANIFEST.MF"
_LINT = ["-Xlint", "-Werror", "-deprecation", "-feature", "-unchecked"]


def find_jars() -> tuple[Path, str]:
    """Return the directory of PySpark's jars and their Spark version."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit(
            f"the shim is compiled against PySpark's jars: pip install 'pyspark=={SUPPORTED_SPARK[-1]}.*'"
        )
    jars = Path(spec.origin).parent / "jars"
    version = _version_of(jars)
    if version is None:
        sys.exit(
            f"{jars} has no Spark jars: this PySpark is an installation without Spark, such as pyspark-client"
        )
    if minor_of(version) not in SUPPORTED_SPARK:
        sys.exit(
            f"the shim has sources for Spark {', '.join(SUPPORTED_SPARK)}, but PySpark {version} is "
            f"installed in {jars.parent}: pip install 'pyspark=={SUPPORTED_SPARK[-1]}.*'"
        )
    return jars, version


def find_jars_of_environment(folders: Iterable[str] | None = None) -> tuple[Path, str] | None:
    """Return jars and version of the PySpark that an isolated build does not see.

    Its minor version must be the other one that the shim supports. pip hides the packages of the environment
    that it installs into from the build, whose interpreter is that environment's. A PySpark that the shim
    does not support may be replaced by the same installation, and `configure` refuses it.

    Parameters
    ----------
    folders
        Folders of packages to look into, by default those of the interpreter and the user.
    """
    if folders is None:
        folders = (sysconfig.get_path("purelib"), site.getusersitepackages())
    for folder in folders:
        jars = Path(folder, "pyspark", "jars")
        version = _version_of(jars)
        if version is not None:
            is_usable = minor_of(version) in SUPPORTED_SPARK and version != "4.0.0"
            return (jars, version) if is_usable and minor_of(version) != minor_of(find_jars()[1]) else None
    return None


def _version_of(jars: Path, library: str = "spark-core_2.13") -> str | None:
    names = [jar.stem for jar in jars.glob(f"{library}-*.jar")]
    return names[0].removeprefix(f"{library}-") if names else None


def jar_of(spark: str) -> Path:
    """Return the path of the jar for a Spark version."""
    return PACKAGE / "jars" / f"spark-statestore-spark-{minor_of(spark)}.jar"


def test_jar_of(spark: str) -> Path:
    """Return the path of the jar for tests and benchmarks with a Spark version."""
    return SHIM / "target" / f"spark-statestore-tests-spark-{minor_of(spark)}.jar"


def _order(version: str) -> list[int]:
    return [int(part) for part in minor_of(version).split(".")]


def find_java() -> str:
    """Return the path of a supported Java runtime."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        sys.exit(f"a Java {OLDEST_JAVA} runtime is needed: set JAVA_HOME, or put java on the PATH")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < OLDEST_JAVA:
        sys.exit(f"Java {OLDEST_JAVA} or newer is needed, but {java} is: {output.strip()}")
    return java


@functools.cache
def option_names() -> str:
    """Return the names of the options, with commas, from the package's sources."""
    code = (
        "from spark_statestore.options import OPTIONS; "
        "print(','.join(option.name for option in OPTIONS), end='')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"the options could not be read:\n{run.stderr}")
    return run.stdout


def resources(spark: str) -> dict[str, str]:
    """Return the resources of the jar: name and content of each."""
    properties = f"version={_VERSIONS['__version__']}\nspark={minor_of(spark)}\noptions={option_names()}\n"
    return {
        _PROPERTIES_ENTRY: properties,
        _HISTORY_ENTRY: "org.apache.spark.sql.statestore.driver.StateHistoryServerPlugin\n",
        _LICENSE_ENTRY: (ROOT / "LICENSE").read_text(encoding="utf-8"),
    }


def source_folders(kind: str, spark: str) -> list[Path]:
    """Return the folders with the Scala sources of a kind for a Spark version.

    `scala` compiles against each Spark, `spark-since-4.2` against 4.2 and later ones, `spark-until-4.1`
    against 4.1 and earlier ones, and `spark-since-4.2-until-4.2` against 4.2 alone.
    """
    folders = [SHIM / "src" / kind / "scala"]
    for folder in sorted((SHIM / "src" / kind).glob("spark-*")):
        bounds = dict(re.findall(r"(since|until)-(\d+\.\d+)", folder.name))
        if _order(bounds.get("since", spark)) <= _order(spark) <= _order(bounds.get("until", spark)):
            folders.append(folder)
    return folders


def sources(kind: str, spark: str) -> list[Path]:
    """Return the Scala sources of a kind for a Spark version, sorted."""
    return sorted(file for folder in source_folders(kind, spark) for file in folder.rglob("*.scala"))


def digest(files: list[Path], extra: dict[str, str], spark: str) -> str:
    """Return the Spark version and a digest of a jar's other inputs: sources and resources."""
    inputs = hashlib.sha256()
    for file in files:
        inputs.update(f"{file.relative_to(SHIM).as_posix()}\n".encode() + file.read_bytes())
    for name, text in sorted(extra.items()):
        inputs.update(f"{name}\n{text}".encode())
    return f"{spark} {inputs.hexdigest()}"


def is_current(jar: Path, wanted: str) -> bool:
    """Return whether a jar was built from inputs with this digest."""
    return _digest_in(jar) == wanted


def current_jars() -> list[Path]:
    """Return the jars in the package that were built from the present sources."""
    current = []
    for jar in sorted((PACKAGE / "jars").glob("*.jar")):
        spark = _digest_in(jar).partition(" ")[0]
        if minor_of(spark) in SUPPORTED_SPARK and is_current(
            jar, digest(sources("main", spark), resources(spark), spark)
        ):
            current.append(jar)
    return current


def _digest_in(jar: Path) -> str:
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.read(_DIGEST_ENTRY).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return ""


def manifest(jars: Path) -> str:
    """Return a jar's manifest, with the versions that it is compiled against."""
    versions = {"Spark": _version_of(jars), "Scala": _version_of(jars, "scala-library")}
    lines = ["Manifest-Version: 1.0", *(f"Build-{name}-Version: {value}" for name, value in versions.items())]
    return "".join(f"{line}\r\n" for line in [*lines, ""])


def build_versions(jar: Path) -> tuple[str, str]:
    """Return the versions of Spark and Scala that a jar was compiled against, from its manifest."""
    with zipfile.ZipFile(jar) as archive:
        text = archive.read(_MANIFEST_ENTRY).decode()
    found = dict(re.findall(r"^Build-(\w+)-Version: (\S+)", text, re.MULTILINE))
    return found["Spark"], found["Scala"]


def compile_scala(files: list[Path], classpath: list[str], target: Path, flags: list[str]) -> None:
    """Compile Scala sources into a directory; exit with the compiler's output on failure."""
    path = os.pathsep.join(classpath)
    command = [find_java(), "-Xss8m", "-Xmx1g", "-cp", path, "scala.tools.nsc.Main"]
    command += ["-classpath", path, "-d", str(target), *flags, *map(str, files)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"scalac failed:\n{run.stdout}{run.stderr}")


def write_jar(jar: Path, classes: Path, extra: dict[str, str]) -> None:
    """Write a jar reproducibly: its bytes depend on its content only."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    entries = {name: text.encode() for name, text in extra.items()}
    entries |= {f.relative_to(classes).as_posix(): f.read_bytes() for f in classes.rglob("*") if f.is_file()}
    handle, staging = tempfile.mkstemp(dir=jar.parent, suffix=".jar")
    os.close(handle)
    with zipfile.ZipFile(staging, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries, key=lambda n: (n != _MANIFEST_ENTRY, n)):
            archive.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), entries[name], zipfile.ZIP_DEFLATED
            )
    os.chmod(staging, 0o644)
    os.replace(staging, jar)


def build(
    against: tuple[Path, str] | None = None, *, tests: bool = False, lint: bool = False, force: bool = False
) -> Path:
    """Build the jars that are out of date; return the path of the shim's jar.

    Parameters
    ----------
    against
        Jars and version of a PySpark, by default that of this interpreter.
    """
    jars, spark = against or find_jars()
    jar = jar_of(spark)
    test_jar = test_jar_of(spark)
    extra = resources(spark)
    wanted = digest(sources("main", spark), extra, spark)
    classpath = [str(jars / "*")]
    flags = _LINT if lint else []
    with tempfile.TemporaryDirectory() as scratch:
        main_classes = Path(scratch, "main")
        main_classes.mkdir()
        if lint or force or not is_current(jar, wanted):
            print(f"compiling the shim for Spark {spark}", file=sys.stderr)
            compile_scala(sources("main", spark), classpath, main_classes, flags)
            if not lint:
                entries = {_MANIFEST_ENTRY: manifest(jars), _DIGEST_ENTRY: wanted}
                write_jar(jar, main_classes, extra | entries)
        if tests or lint:
            wanted_tests = digest(sources("test", spark), {"shim": wanted}, spark)
            if lint or force or not is_current(test_jar, wanted_tests):
                print("compiling the shim's tests", file=sys.stderr)
                test_classes = Path(scratch, "test")
                test_classes.mkdir()
                shim = str(main_classes if lint else jar)
                compile_scala(sources("test", spark), [*classpath, shim], test_classes, flags)
                if not lint:
                    entries = {_MANIFEST_ENTRY: manifest(jars), _DIGEST_ENTRY: wanted_tests}
                    write_jar(test_jar, test_classes, entries)
    return jar


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Compile the JVM shim.")
    parser.add_argument("--tests", action="store_true", help="also build the jar for tests and benchmarks")
    parser.add_argument("--lint", action="store_true", help="only compile, with every warning an error")
    parser.add_argument("--force", action="store_true", help="rebuild jars that are up to date, too")
    arguments = parser.parse_args()
    print(build(tests=arguments.tests, lint=arguments.lint, force=arguments.force))


if __name__ == "__main__":
    main()

"""Configuration of a Spark session for the state store, and its validation."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from spark_statestore._version import SUPPORTED_SPARK, __version__, minor_of
from spark_statestore.errors import IncompatibleSparkError, OptionError, SessionError
from spark_statestore.options import OPTION_PREFIX, PROVIDER_CLASS, PROVIDER_KEY, check
from spark_statestore.python_workers import settings_of_workers
from spark_statestore.spark_settings import interpreter, present_settings
from spark_statestore.temporary import PREFIX, keep_while_alive, remove_abandoned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Builder = TypeVar("Builder", bound="SparkSession.Builder")

__all__ = [
    "EXTENSIONS_CLASS",
    "FILE_MANAGER_CLASS",
    "PLUGIN_CLASS",
    "PROVIDER_CLASS",
    "attach",
    "configure",
    "jar_path",
]

EXTENSIONS_CLASS: Final = "org.apache.spark.sql.statestore.StateStoreExtensions"
"""For ``spark.sql.extensions``: enables transformWithState, which Spark restricts to its own RocksDB
provider, and validates the options on the driver."""

PLUGIN_CLASS: Final = "org.apache.spark.sql.statestore.StateStorePlugin"
"""For ``spark.plugins``: starts each executor's backend with the executor. On a cluster
``storage=memory`` without ``checkpointsDir`` requires it, as the driver then keeps the state, and so does
``commit=batch``, with which executors send their commits to the driver."""

FILE_MANAGER_CLASS: Final = "org.apache.spark.sql.statestore.BackendCheckpointFileManager"
"""For ``spark.sql.streaming.checkpointFileManagerClass``: Spark's own files of a checkpoint, its logs and
metadata, are read and written by the driver's backend, as state is."""

_SHIPPED: Final = (
    *("backend", "files", "formats", "operator_state"),
    *("query", "rescaling", "rows", "savepoints", "storage", "store"),
)
"""Subpackages in the archive for executors: those that the backend and `QueryOperatorState` import."""

_CUSTOM_METRICS: Final = (
    "checkpointLoadTimeUs",
    "checkpointLoadBytes",
    "checkpointCommitEncodeTimeUs",
    "checkpointCommitSendTimeUs",
    "checkpointCommitStoreTimeUs",
    "checkpointBytesWritten",
    "checkpointObjectsWritten",
    "checkpointMaxChainLength",
    "checkpointMaxSnapshotAge",
    "stateTableMaxRows",
    "checkpointFullSnapshots",
    "stateTableCompactions",
    "backendRoundTrips",
    "backendRestarts",
    "storageRetries",
    "streamsRepaired",
    "localCopyLoads",
    "backendMemoryBytes",
    "stateTableMappedBytes",
)
"""The custom metrics of the store, in the order of `StoreMetrics`: Spark draws those that are listed."""

_CUSTOM_METRICS_KEY = "spark.sql.streaming.ui.enabledCustomMetricList"

_FILE_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
# Spark's lists of files are separated by commas, and each entry is a URI and a pattern of Hadoop.
_LIST_CHARACTERS: Final = re.compile(r"[#,*?{}\[\]\\]")
_JAR_NAME = re.compile(r"spark-statestore-spark-(\d+\.\d+)\.jar")


def jar_path(spark_version: str | None = None) -> str:
    """Return the path of the jar for a Spark version, for ``spark-submit --jars`` or ``spark.jars``.

    Parameters
    ----------
    spark_version
        Version such as ``4.3.0``; by default that of the installed PySpark.

    Raises
    ------
    IncompatibleSparkError
        If this release has no jar for that Spark, or no version is given and PySpark is not installed.
    """
    jars = {}
    for path in (Path(__file__).parent / "jars").glob("*.jar"):
        if match := _JAR_NAME.fullmatch(path.name):
            jars[match[1]] = str(path)
    shipped = ", ".join(sorted(jars)) or "no Spark: it was not built, see jvm-shim/build_shim.py"
    version = spark_version or installed_spark()
    if version is None:
        raise IncompatibleSparkError(
            "PySpark is not installed in this interpreter, so the jar to use is unknown: install it, or pass "
            f"the version, as in jar_path('4.3.0'). This release has jars for Spark {shipped}."
        )
    if version == "4.0.0":
        raise IncompatibleSparkError(
            "Spark 4.0.0 lacks an interface of state stores that its patch releases have: use Spark 4.0.1 or "
            "later, which reads the same checkpoints (pip install 'pyspark>=4.0.1,<4.1')."
        )
    minor = minor_of(version)
    jar = jars.get(minor)
    if jar is None and minor in SUPPORTED_SPARK:
        raise IncompatibleSparkError(
            f"this installation of spark-statestore {__version__} was built from sources, and has jars for "
            f"Spark {shipped} alone, not for Spark {version}. Install a released wheel, which has all of "
            "them; or build the jar with this Spark: pip install --no-build-isolation . in the checkout, or "
            "make wheel for all."
        )
    if jar is None:
        raise IncompatibleSparkError(
            f"spark-statestore {__version__} does not support Spark {version}, only Spark "
            f"{', '.join(SUPPORTED_SPARK)}. Spark's state store interface differs between minor versions: "
            "install a release of spark-statestore for that Spark, or one of those Spark versions."
        )
    return jar


def configure(
    builder: Builder,
    storage: str = "filesystem",
    *,
    spark_files: Literal["backend", "hadoop"] = "backend",
    python_workers: Literal["fast", "spark"] = "fast",
    **options: Any,
) -> Builder:
    """Configure a session builder to keep streaming state in this store.

    Adds the jar and an archive of the backend to the files that the session ships, and sets provider,
    extension, interpreter and options. Spark's page of a streaming query then shows the store's metrics, too.
    Present settings are kept: lists are appended to, and a contradicting setting is an error.

    With ``storage="memory"`` and no ``checkpoints_dir`` the driver keeps the state of all executors,
    until the application ends. Executors reach it through `PLUGIN_CLASS`, which is added to
    ``spark.plugins`` in this case, and if the builder's master is a cluster.

    Parameters
    ----------
    builder
        ``SparkSession.builder``, with everything else set.
    storage
        ``filesystem`` or ``memory``.
    spark_files
        What writes Spark's own files below a ``checkpointLocation``, such as its logs of offsets and commits:
        the ``backend`` of the driver, with which any fsspec URL is valid, or ``hadoop``, which needs a
        connector for the URL. Either continues what the other wrote. A
        ``spark.sql.streaming.checkpointFileManagerClass`` that is set is kept.
    python_workers
        How Python tasks run: ``fast`` uses `spark_statestore.worker_daemon` where the workers' interpreter
        has this package, and from Spark 4.1 Unix domain sockets; ``spark`` leaves both to Spark. Present
        settings are kept. An application that spark-submit starts with a local master is left to Spark.
    **options
        The options of `spark_statestore.options`, by their names or in snake case:
        ``checkpoints_dir="s3://bucket/checkpoints"``.

    Returns
    -------
    SparkSession.Builder
        The same builder.

    Raises
    ------
    OptionError
        If an option is unknown or its value invalid, or `spark_files` or `python_workers` is.
    StorageURLError, MissingDriverError
        If the URL of a directory is invalid, or its driver is not installed.
    IncompatibleSparkError
        If there is no jar for the installed Spark.
    SessionError
        If a session runs already, or a present setting contradicts.

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> import spark_statestore
    >>> builder = spark_statestore.configure(SparkSession.builder.master("local[2]"))
    """
    values = _check_options({"storage": storage} | options)
    if spark_files not in ("backend", "hadoop"):
        raise OptionError(f"spark_files is {spark_files!r}, but it must be 'backend' or 'hadoop'.")
    if python_workers not in ("fast", "spark"):
        raise OptionError(f"python_workers is {python_workers!r}, but it must be 'fast' or 'spark'.")
    builder_conf: dict[str, Any] = builder._options
    if "spark.remote" in builder_conf or "SPARK_REMOTE" in os.environ:
        raise SessionError(
            "a Spark Connect client cannot add a state store: configure the server's session, with "
            "'--jars' and spark-defaults (see conf/), and start the query from the client as usual."
        )
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    defaults = present_settings(submitted=submitted)
    settings = {PROVIDER_KEY: PROVIDER_CLASS}
    settings |= {OPTION_PREFIX + name: value for name, value in values.items()}
    python = interpreter(builder_conf, defaults)
    if python is not None and OPTION_PREFIX + "python" not in settings | builder_conf:
        settings[OPTION_PREFIX + "python"] = python
    for key, value in settings.items():
        if str(builder_conf.get(key, value)) != value:
            raise SessionError(
                f"{key!r} is set to {builder_conf[key]!r} on this builder, and configure sets it to "
                f"{value!r}: remove one of the two."
            )
        builder.config(key, value)
    if spark_files == "backend" and _FILE_MANAGER_KEY not in builder_conf | defaults:
        builder.config(_FILE_MANAGER_KEY, FILE_MANAGER_CLASS)
        driver_python = OPTION_PREFIX + "driverPython"
        if sys.executable and driver_python not in settings | builder_conf | defaults:
            builder.config(driver_python, sys.executable)
    if _CUSTOM_METRICS_KEY not in builder_conf | defaults:
        builder.config(_CUSTOM_METRICS_KEY, ",".join(_CUSTOM_METRICS))
    _append(builder, defaults, "spark.sql.extensions", EXTENSIONS_CLASS)
    directory = OPTION_PREFIX + "checkpointsDir"
    is_on_driver = storage == "memory" and directory not in settings | builder_conf | defaults
    has_executors = _has_executors(builder_conf, defaults)
    if is_on_driver or has_executors:
        _append(builder, defaults, "spark.plugins", PLUGIN_CLASS)
    if python_workers == "fast" and (has_executors or not submitted):
        has_sockets = (spark := installed_spark()) is not None and minor_of(spark) != "4.0"
        workers = settings_of_workers(defaults | builder_conf, has_executors, has_unix_sockets=has_sockets)
        for key, value in workers.items():
            builder.config(key, value)
    # spark-submit has started the JVM already, with --jars and --py-files.
    if not submitted:
        _require_loadable_jar(set(settings))
        _ship(builder, defaults, "spark.jars", "--jars", _shippable_jar())
        _ship(builder, defaults, "spark.submit.pyFiles", "--py-files", _package_archive())
    return builder


def attach(spark: SparkSession) -> None:
    """Check that a running session can use the state store.

    Raises
    ------
    SessionError
        If a setting is missing; the message has the lines to add.
    OptionError
        If an option of the session is unknown or its value invalid.
    StorageURLError, MissingDriverError
        If the URL of a directory is invalid, or its driver is not installed.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise SessionError(
            "this is a Spark Connect session, without access to the server's classes: check on the server, "
            "with spark_statestore.attach in a session of its own."
        )
    missing = []
    build = _build_info(jvm)
    provider = spark.conf.get(PROVIDER_KEY, None)
    if build is None:
        effect = (
            f"; {PROVIDER_KEY!r} names a class in it, so a query ends with 'terminated with "
            f"exception: {PROVIDER_CLASS}', a ClassNotFoundException"
            if provider == PROVIDER_CLASS
            else ""
        )
        missing.append(
            f"the jar is not on the class path{effect}. It cannot be added to a running JVM. Restart Python "
            "(in a notebook: the kernel), and before the session starts:\n"
            "    builder = spark_statestore.configure(SparkSession.builder)\n"
            f"or   spark-submit --jars {_jar_or_hint(spark.version)} ..."
        )
    # Such a session has no class of its own: its queries get this store's.
    if provider != PROVIDER_CLASS and spark.conf.get(OPTION_PREFIX + "realTimeMode", "false") != "true":
        missing.append(
            "the session has another provider. Before the query's first start:\n"
            f'    spark.conf.set("{PROVIDER_KEY}", "{PROVIDER_CLASS}")'
        )
    if _needs_plugin(spark):
        missing.append(
            "storage=memory without checkpointsDir keeps the state of all executors on the driver, to which "
            "they send it through a plugin. When the application starts:\n"
            f"    spark.plugins={PLUGIN_CLASS}"
        )
    if missing:
        raise SessionError("this session does not use spark-statestore: " + "\n".join(missing))
    if build is not None and build.version() != __version__:
        raise SessionError(
            f"the jar in this session is of spark-statestore {build.version()}, but the Python package is "
            f"{__version__}: use the jar at spark_statestore.jar_path(), or install "
            f"spark-statestore=={build.version()}."
        )
    for key, value in spark.conf.getAll.items():
        if key.startswith(OPTION_PREFIX):
            _check_option(key[len(OPTION_PREFIX) :], value)


def _needs_plugin(spark: SparkSession) -> bool:
    if spark.conf.get(OPTION_PREFIX + "storage", None) != "memory":
        return False
    if spark.conf.get(OPTION_PREFIX + "checkpointsDir", None) is not None:
        return False
    plugins = str(spark.sparkContext.getConf().get("spark.plugins", "")).split(",")
    return not spark.sparkContext._jsc.sc().isLocal() and PLUGIN_CLASS not in map(str.strip, plugins)


def _check_options(options: dict[str, Any]) -> dict[str, str]:
    values = {}
    for key, value in options.items():
        head, *rest = key.split("_")
        name = head + "".join(part.title() for part in rest)
        if name in values:
            raise OptionError(f"the option {name!r} is given twice: remove one of the two.")
        values[name] = _check_option(name, value)
    return values


def _check_option(name: str, value: object) -> str:
    from spark_statestore.files import check_directories

    text = check(name, value)
    check_directories({name: text})
    return text


def _has_executors(builder_conf: dict[str, Any], defaults: dict[str, str]) -> bool:
    """Return True if the master is known, and its executors are processes of their own."""
    master = str(builder_conf.get("spark.master") or defaults.get("spark.master") or "local")
    return re.fullmatch(r"local(\[.*\])?", master) is None


def _append(builder: Builder, defaults: dict[str, str], key: str, value: str) -> None:
    present = str(builder._options.get(key) or defaults.get(key) or "")
    entries = [entry for entry in present.split(",") if entry]
    if value not in entries:
        builder.config(key, ",".join([*entries, value]))


def _ship(builder: Builder, defaults: dict[str, str], key: str, flag: str, path: str) -> None:
    # A flag in PYSPARK_SUBMIT_ARGS overrides the setting, so append to the flag's list.
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for i, argument in enumerate(arguments[:-1]):
        if argument == flag:
            if path not in arguments[i + 1].split(","):
                arguments[i + 1] += f",{path}"
                os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(arguments)
            return
    _append(builder, defaults, key, path)


# The options that `configure` has set in this process. Spark keeps the settings of the session that launched
# the JVM as defaults of the sessions after it.
_configured: set[str] = set()


def _require_loadable_jar(settings: set[str]) -> None:
    """Raise an error if there is a JVM without this jar, or a session runs in it.

    Prepare the JVM for a next session.
    """
    context = sys.modules.get("pyspark.core.context")
    if context is not None and (gateway := context.SparkContext._gateway) is not None:
        build = _build_info(gateway.jvm)
        has_session = context.SparkContext._active_spark_context is not None
        if has_session or build is None or build.version() != __version__:
            raise SessionError(
                "this Python process has a running Spark JVM, whose class path is fixed: call "
                "spark_statestore.configure before the first session is built, or restart Python. If it has "
                "configured the running session, stop that one first (spark.stop()). "
                "spark_statestore.attach(spark) checks the running session."
            )
        for key in _configured - settings:
            gateway.jvm.java.lang.System.clearProperty(key)
        _configured.clear()
    _configured.update(settings)


def _build_info(jvm: Any) -> Any:
    """Return the `BuildInfo` of the jar on a JVM's class path, None if there is none."""
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(PROVIDER_CLASS, True, loader)
        return jvm.org.apache.spark.sql.statestore.BuildInfo
    except Exception:  # noqa: BLE001 - py4j raises several types
        return None


# By process, as a forked child has its parent's.
_shipped_directories: dict[int, Path] = {}


def _shipped_directory() -> Path:
    """Return the directory for files that this process ships, which is removed when the process ends."""
    process = os.getpid()
    directory = _shipped_directories.get(process)
    if directory is None or not _is_own(directory):
        parent = tempfile.gettempdir()
        if _LIST_CHARACTERS.search(parent):
            raise SessionError(
                f"the directory of temporary files, {parent}, has one of the characters "
                f"{_LIST_CHARACTERS.pattern} in its path, and Spark cannot be given files below it, which a "
                "session needs: set the environment variable TMPDIR to another directory."
            )
        remove_abandoned(parent)
        directory = _shipped_directories[process] = Path(tempfile.mkdtemp(prefix=PREFIX))
        keep_while_alive(str(directory))
        atexit.register(_remove_shipped, directory, process)
    return directory


def _is_own(directory: Path) -> bool:
    # A cleaner of temporary files may have removed it, and another user made one of this name.
    with contextlib.suppress(OSError):
        return directory.lstat().st_uid == os.geteuid()
    return False


def _remove_shipped(directory: Path, process: int) -> None:
    # A forked child that ends by itself runs its parent's handlers.
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _shippable_jar() -> str:
    """Return the path of the jar, of a copy if Spark would take it for a list, pattern or fragment."""
    jar = jar_path()
    if _LIST_CHARACTERS.search(jar) is None:
        return jar
    copy = _shipped_directory() / os.path.basename(jar)
    if not copy.exists():
        shutil.copyfile(jar, copy)
    return str(copy)


def _package_archive() -> str:
    """Zip the part of this package that executors need.

    It has the modules at the top, and the packages of `_SHIPPED`. All sessions of a process ship one archive,
    as Spark keeps its path with the JVM.
    """
    root = Path(__file__).parent
    archive = _shipped_directory() / f"spark_statestore-{__version__}.zip"
    if not archive.exists():
        sources = [*root.glob("*.py"), *(path for name in _SHIPPED for path in (root / name).rglob("*.py"))]
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for path in sorted(sources):
                target.write(path, Path(root.name, path.relative_to(root)))
    return str(archive)


def installed_spark() -> str | None:
    """Return the version of the installed PySpark, None if there is none."""
    if importlib.util.find_spec("pyspark") is None:
        return None
    from pyspark.version import __version__ as version

    return str(version)


def _jar_or_hint(version: str) -> str:
    try:
        return jar_path(version)
    except IncompatibleSparkError as error:
        return f"<{error}>"

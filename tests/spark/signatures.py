"""Signatures of the members of Spark's classes that the shim implements, overrides or calls.

    python -m tests.spark.signatures

prints those of the installed Spark, as tests/spark/signatures has them for each minor version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.support.paths import ROOT, SPARK_MINOR

RECORDED = Path(__file__).parent / "signatures" / f"spark-{SPARK_MINOR}.txt"

STATE = "org.apache.spark.sql.execution.streaming.state."
CLASSES = (
    *(
        STATE + name
        for name in (
            "KeyStateEncoderSpec",
            "NoPrefixKeyStateEncoderSpec",
            "PrefixKeyScanStateEncoderSpec",
            "RangeKeyScanStateEncoderSpec",
            "ReadStateStore",
            "ReusableIterator",
            "RocksDBStateStoreProvider",
            "StateSchemaProvider",
            "StateStore",
            "StateStoreChangeDataReader",
            "StateStoreCheckpointInfo",
            "StateStoreConf",
            "StateStoreCoordinatorRef",
            "StateStoreCustomMetric",
            "StateStoreCustomSizeMetric",
            "StateStoreCustomSumMetric",
            "StateStoreErrors$",
            "StateStoreId",
            "StateStoreIterator",
            "StateStoreMetrics",
            "StateStoreProvider",
            "StateStoreProvider$",
            "StateStoreProviderId",
            "SupportsFineGrainedReplay",
            "SupportsReusableIterator",
            "TimestampAsPostfixKeyStateEncoderSpec",
            "TimestampAsPrefixKeyStateEncoderSpec",
            "UnsafeRowPair",
        )
    ),
    "org.apache.spark.sql.execution.ColumnarRule",
    "org.apache.spark.sql.execution.metric.SQLMetric",
    "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec",
    "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator",
    "org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec",
    # Before 4.1 the first package, then the second.
    "org.apache.spark.sql.execution.streaming.CheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$CancellableFSDataOutputStream",
    "org.apache.spark.sql.connector.metric.CustomMetric",
    "org.apache.spark.sql.SparkSessionExtensions",
)


def signatures(jvm: Any) -> list[str]:
    """Return the running Spark's members that the shim's sources name, sorted, and absent classes."""
    sources = (ROOT / "jvm-shim" / "src" / "main").rglob("*.scala")
    named = {word for source in sources for word in re.findall(r"\w+", source.read_text())}
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # Scala's own, which its compiler repeats in each class.
    for name in ("scala.collection.Iterator", "scala.Product", "java.lang.Object"):
        named -= {
            method.getName() for method in jvm.java.lang.Class.forName(name, False, loader).getMethods()
        }
    members = []
    for name in CLASSES:
        try:
            declared = jvm.java.lang.Class.forName(name, False, loader)
        except Py4JJavaError:
            members.append(f"{name}: absent")
            continue
        members += sorted(set(_members(jvm, declared, named)))
    return members


def _members(jvm: Any, declared: Any, named: set[str]) -> Iterator[str]:
    modifier = jvm.java.lang.reflect.Modifier
    for member in [*declared.getDeclaredMethods(), *declared.getDeclaredConstructors()]:
        is_named = member.getName().rpartition(".")[2] in named
        flags = member.getModifiers()
        if is_named and not (modifier.isPrivate(flags) or modifier.isStatic(flags) or member.isSynthetic()):
            yield str(member.toString()).partition(" throws ")[0]


def main() -> None:
    """Print the signatures of the installed Spark."""
    from tests.support.sessions import local_builder

    spark = local_builder("signatures", memory="1g").getOrCreate()
    print("\n".join(signatures(spark._jvm)))
    spark.stop()


if __name__ == "__main__":
    main()

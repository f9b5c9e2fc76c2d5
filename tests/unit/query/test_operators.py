"""Tests of Spark's operator metadata, as Spark 4.3 writes it."""

from __future__ import annotations

import pytest

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.query import OperatorStore, StatefulOperator

JOIN = (
    b'v1\n{"operatorInfo":{"operatorId":3,"operatorName":"symmetricHashJoin"},"stateStoreInfo":[{"storeName":'
    b'"left-keyToNumValues","numColsPrefixKey":0,"numPartitions":2},{"storeName":"right-keyToNumValues",'
    b'"numColsPrefixKey":1,"numPartitions":2}]}'
)
PROCESSOR = (
    b'v2\n{"operatorInfo":{"operatorId":1,"operatorName":"transformWithStateInPandasExec"},"stateStoreInfo":[{'
    b'"storeName":"default","numColsPrefixKey":0,"numPartitions":4,"stateSchemaFilePaths":['
    b'"file:/c/state/1/_stateSchema/default/0_0315faca","s3a://b/state/1/_stateSchema/default/7_f00"]}],'
    b'"operatorPropertiesJson":"{\\"timeMode\\":\\"EventTime\\",\\"stateVariables\\":[]}"}'
)


def test_operator_has_its_stores_partitions_and_properties() -> None:
    join = StatefulOperator.decode(JOIN, "here")
    stores = (OperatorStore("left-keyToNumValues", 0, 2), OperatorStore("right-keyToNumValues", 1, 2))
    assert (join.id, join.name, join.stores, join.version) == (3, "symmetricHashJoin", stores, "v1")
    assert (join.partitions, dict(join.properties), join.schema_files) == (2, {}, ())
    assert join.encode() == JOIN
    processor = StatefulOperator.decode(PROCESSOR, "here")
    assert processor.properties == {"timeMode": "EventTime", "stateVariables": []}
    assert [url.rpartition("/")[2] for url in processor.schema_files] == ["0_0315faca", "7_f00"]
    assert processor.encode() == PROCESSOR


@pytest.mark.parametrize("data", [JOIN, PROCESSOR])
def test_operator_with_partitions_changes_every_store(data: bytes) -> None:
    before = StatefulOperator.decode(data, "here")
    after = before.with_partitions(7)
    assert after.partitions == 7
    assert {store.partitions for store in after.stores} == {7}
    number = b'"numPartitions":%d' % before.partitions
    assert after.encode() == data.replace(number, b'"numPartitions":7')
    assert before.encode() == data


def test_operator_relocated_moves_its_own_schema_files() -> None:
    operator = StatefulOperator.decode(PROCESSOR, "here").relocated("file:///new/state/")
    assert operator.schema_files == (
        "file:///new/state/1/_stateSchema/default/0_0315faca",
        "file:///new/state/1/_stateSchema/default/7_f00",
    )
    assert StatefulOperator.decode(operator.encode(), "here") == operator
    other_operator = StatefulOperator.decode(PROCESSOR.replace(b":1,", b":2,"), "here")
    assert other_operator.relocated("/new").schema_files == other_operator.schema_files
    assert StatefulOperator.decode(JOIN, "here").relocated("/new").encode() == JOIN


@pytest.mark.parametrize(
    "data", [b"", b"v1", b"v1\n[]", b"v1\nnull", b"\xff\n{}", JOIN[:-3], JOIN.replace(b"storeName", b"name")]
)
def test_operator_decode_refuses_other_bytes_with_the_path(data: bytes) -> None:
    refused = "state/3/_metadata does not describe a stateful operator"
    with pytest.raises(CorruptCheckpointError, match=refused):
        StatefulOperator.decode(data, "state/3/_metadata")

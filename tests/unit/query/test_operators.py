"""Tests of Spark's operator metadata, as Spark 4.3 writes it."""

from __future__ import annotations

import json

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


def test_operator_has_its_stores_and_partitions() -> None:
    operator = StatefulOperator.decode(JOIN, "here")
    assert (operator.id, operator.name, operator.version, operator.partitions) == (
        3,
        "symmetricHashJoin",
        "v1",
        2,
    )
    assert operator.stores == (
        OperatorStore("left-keyToNumValues", 0, 2),
        OperatorStore("right-keyToNumValues", 1, 2),
    )
    assert (dict(operator.properties), operator.schema_files) == ({}, ())
    assert operator.encode() == JOIN


def test_operator_version_2_has_properties() -> None:
    operator = StatefulOperator.decode(PROCESSOR, "here")
    assert operator.properties == {"timeMode": "EventTime", "stateVariables": []}
    assert [url.rpartition("/")[2] for url in operator.schema_files] == ["0_0315faca", "7_f00"]
    assert operator.encode() == PROCESSOR


@pytest.mark.parametrize("data", [JOIN, PROCESSOR])
def test_operator_with_partitions_changes_every_store(data: bytes) -> None:
    before = StatefulOperator.decode(data, "here")
    after = before.with_partitions(7)
    assert after.partitions == 7
    assert {store.partitions for store in after.stores} == {7}
    number = b'"numPartitions":%d' % before.partitions
    assert after.encode() == data.replace(number, b'"numPartitions":7')
    assert before.encode() == data


def test_operator_relocated_moves_schema_files() -> None:
    operator = StatefulOperator.decode(PROCESSOR, "here").relocated("file:///new/state/")
    assert operator.schema_files == (
        "file:///new/state/1/_stateSchema/default/0_0315faca",
        "file:///new/state/1/_stateSchema/default/7_f00",
    )
    assert StatefulOperator.decode(operator.encode(), "here") == operator
    # Those of another operator are not this one's, and without any nothing changes.
    assert StatefulOperator.decode(PROCESSOR.replace(b":1,", b":2,"), "here").relocated(
        "/n"
    ).schema_files == (
        "file:/c/state/1/_stateSchema/default/0_0315faca",
        "s3a://b/state/1/_stateSchema/default/7_f00",
    )
    assert StatefulOperator.decode(JOIN, "here").relocated("/new").encode() == JOIN


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1",
        b"v1\n[]",
        b"v1\n{}",
        b"v1\nnull",
        b"\xff\n{}",
        JOIN[:-3],
        JOIN.replace(b"storeName", b"name"),
    ],
)
def test_operator_decode_refuses_other_bytes_with_the_path(data: bytes) -> None:
    with pytest.raises(
        CorruptCheckpointError, match="state/3/_metadata does not describe a stateful operator"
    ):
        StatefulOperator.decode(data, "state/3/_metadata")


def test_global_aggregation_is_single_regardless_of_its_metadata() -> None:
    node = json.loads(JOIN.split(b"\n")[1])
    node["operatorInfo"]["operatorName"] = "stateStoreSave"
    save = StatefulOperator.decode(b"v1\n" + json.dumps(node).encode(), "here")
    no_keys, one_key = (json.dumps({"type": "struct", "fields": fields}) for fields in ([], [{"name": "k"}]))
    assert (save.is_single(no_keys), save.is_single(one_key)) == (True, False)
    assert not StatefulOperator.decode(JOIN, "here").is_single(no_keys)

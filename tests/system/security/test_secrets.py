"""No output visible to users or other programs contains a storage password."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.counting import Program
from tests.support.s3 import S3_WARNINGS, client_of, s3_service

pytestmark = [pytest.mark.slow, *S3_WARNINGS]


@pytest.fixture
def directory() -> Iterator[Path]:
    # Short, as a socket's path is limited.
    path = Path(tempfile.mkdtemp(prefix="secret-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def stored(endpoint: str) -> dict[str, bytes]:
    """Return the objects of the bucket."""
    client = client_of(endpoint)
    names = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket")["Contents"]]
    return {name: client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in names}


def test_secrets_appear_in_no_output(built: Path, directory: Path) -> None:
    planted = f"planted-{secrets.token_hex(12)}"
    work = directory / "seen"
    for name in ("events", "tmp"):
        (work / name).mkdir(parents=True)
    confs = {
        "spark.jars": str(built),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{work}/events",
        "spark.local.dir": f"{work}/tmp",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work}/tmp",
    }
    with s3_service() as endpoint:
        environment = {
            "AWS_ACCESS_KEY_ID": "AKIA" + planted[-12:],
            "AWS_SECRET_ACCESS_KEY": planted,
            "AWS_SESSION_TOKEN": f"session-{planted}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "FSSPEC_S3_ENDPOINT_URL": endpoint,
        }
        client_of(endpoint).create_bucket(Bucket="bucket")
        wrong = ["s3://no-such-bucket/x", f"s3://me:{planted}@bucket/x", f"sftp://me:{planted}@host/x"]
        with Program(
            "planted_secrets",
            environment,
            confs=confs,
            directory=str(work),
            storage="s3://bucket/state",
            wrong=wrong,
        ) as program:
            output = program.next("seen")
            program.next("stopped")
            program.end()
            program._errors.seek(0)
            logs = program._errors.read()
        objects = stored(endpoint)
    # The searched outputs exist.
    assert any("chk-" in name for name in objects)
    assert "spark.sql.shuffle.partitions" in output["pages"]["/environment/"]
    assert "NoSuchBucket" in "".join(output["errors"]) or "bucket does not exist" in "".join(output["errors"])
    assert "contains a password" in "".join(output["errors"])
    assert "state store: storage filesystem, directory s3://bucket/state, interpreter" in logs
    # The failures are logged there.
    assert "NoSuchBucket" in logs or "at org.apache.spark" in logs
    texts = {
        "logs": logs,
        **{f"error {number}": error for number, error in enumerate(output["errors"])},
        **{f"process {number}": line for number, line in enumerate(output["processes"])},
        **{f"page {name}": page for name, page in output["pages"].items()},
    }
    files = {str(path): path.read_bytes() for path in work.rglob("*") if path.is_file()}
    assert any("/commits/" in name for name in files)
    assert any("/events/" in name for name in files)
    outputs = objects | files | {name: text.encode() for name, text in texts.items()}
    assert [name for name, content in outputs.items() if planted.encode() in content] == []

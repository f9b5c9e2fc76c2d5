"""Trim the event log of `program` to what `assess` reads: one small log for each query.

python -m tests.system.assess.trim EVENTLOG DIRECTORY
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow as pa

from spark_statestore.assess import event_log
from spark_statestore.assess.event_log import Event, EventLog
from spark_statestore.assess.queries import STATE_STORE, TASK_METRICS


def trim(log: EventLog, directory: Path) -> None:
    """Write the events of each query, without what is not read, as one file with its name."""
    lines: dict[str, list[Event]] = {}
    names: dict[str, str] = {}
    stages: dict[int, str] = {}
    common: list[Event] = []
    for event in log.events():
        match event["Event"]:
            case event_log.STARTED:
                names[event["runId"]] = event["name"]
                lines[event["name"]] = [*common, event]
            case event_log.PROGRESS:
                lines[event["progress"]["name"]].append(event)
            case event_log.JOB:
                name = names[event["Properties"]["spark.jobGroup.id"]]
                stages |= dict.fromkeys(event["Stage IDs"], name)
                lines[name].append(_job(event))
            case event_log.TASK:
                lines[stages[event["Stage ID"]]].append(_task(event))
            case event_log.EXECUTION:
                (run,) = re.findall(r"runId = (\S+)", event["description"])
                lines[names[run]].append(_execution(event))
            case event_log.ENVIRONMENT:
                common.append({"Event": event["Event"], "Spark Properties": {}})
            case _:
                common.append(event)
    for name, events in lines.items():
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        text = re.sub(rf"/[\w/.-]+?/(?={re.escape(name)}/)", "/data/", text)
        content = pa.Codec("zstd", compression_level=19).compress(text.encode(), asbytes=True)
        (directory / f"{name.replace(' ', '-').lower()}.zstd").write_bytes(content)


def _job(event: Event) -> Event:
    property_names = ("streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id")
    properties = {
        key: value
        for key, value in event["Properties"].items()
        if key in property_names or (key.startswith(STATE_STORE) and "/" not in value)
    }
    return {"Event": event["Event"], "Stage IDs": event["Stage IDs"], "Properties": properties}


def _task(event: Event) -> Event:
    info = event["Task Info"]
    return {
        "Event": event["Event"],
        "Stage ID": event["Stage ID"],
        "Task End Reason": event["Task End Reason"],
        "Task Info": {
            "Launch Time": info["Launch Time"],
            "Finish Time": info["Finish Time"],
            "Accumulables": [
                {"Name": each["Name"], "Update": each["Update"]}
                for each in info["Accumulables"]
                if each["Name"] in TASK_METRICS
            ],
        },
        "Task Metrics": {"Executor Run Time": event["Task Metrics"]["Executor Run Time"]},
    }


def _execution(event: Event) -> Event:
    plan = re.findall(r"checkpoint = \S+/state,", event["physicalPlanDescription"])
    return {
        "Event": event["Event"],
        "description": event["description"],
        "physicalPlanDescription": "".join(plan[:1]),
    }


if __name__ == "__main__":
    trim(EventLog(sys.argv[1]), Path(sys.argv[2]))

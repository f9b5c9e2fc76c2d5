"""Nexmark's queries as a job of Flink, in the words of its SQL; a program of its own for Flink's environment.

It prints a line as the job starts and one as it ends, and then waits for the end of its input. It imports
nothing of this project, since Flink needs other versions of the packages.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

EVENTS = """CREATE TABLE {name} (
  kind INT, `time` TIMESTAMP(3),
  person_id BIGINT, person_name STRING, person_city STRING, person_state STRING,
  auction_id BIGINT, auction_item STRING, auction_initial BIGINT, auction_reserve BIGINT,
  auction_expires TIMESTAMP(3), auction_seller BIGINT, auction_category BIGINT,
  bid_auction BIGINT, bid_bidder BIGINT, bid_price BIGINT, bid_channel STRING{watermark}
) WITH ('connector' = 'filesystem', 'path' = '{events}', 'format' = 'csv', 'csv.null-literal' = '')"""

# The auctions of q4 and q9 wait for their end, as the queries for Spark have it.
TABLES = {
    "events": ", WATERMARK FOR `time` AS `time` - INTERVAL '10' SECOND",
    "ends": """, expires AS COALESCE(auction_expires, `time`),
      WATERMARK FOR expires AS expires - INTERVAL '310' SECOND(3)""",
    "timeless": "",
}

BIDS = """SELECT bid_auction AS auction, bid_bidder AS bidder, bid_price AS price, `time`
  FROM events WHERE kind = 2"""

WINNING_BIDS = """SELECT window_end AS final, window_time AS final_time, id, category, price, placed, bidder
  FROM (
  SELECT *, ROW_NUMBER() OVER (
    PARTITION BY window_start, window_end, id ORDER BY price DESC, placed DESC, bidder DESC) AS place
  FROM TABLE(TUMBLE(TABLE valid_bids, DESCRIPTOR(expires), INTERVAL '10' SECOND))
) WHERE place = 1"""

VIEWS = {
    "bids": BIDS,
    "persons": "SELECT person_id AS id, person_name AS name, `time` FROM events WHERE kind = 0",
    "sellers": "SELECT auction_seller AS seller, `time` FROM events WHERE kind = 1",
    "offers": """SELECT auction_id AS id, auction_category AS category, `time` AS begun,
      expires FROM ends WHERE kind = 1""",
    "valid_bids": """SELECT id, category, expires, price, bids.`time` AS placed, bidder FROM offers, bids
      WHERE auction = id AND bids.`time` BETWEEN expires - INTERVAL '300' SECOND(3) AND expires
      AND bids.`time` >= begun""",
    "winning_bids": WINNING_BIDS,
}

QUERIES = {
    "q3": """SELECT person_name, person_city, person_state, auction
      FROM (SELECT auction_id AS auction, auction_seller AS seller FROM timeless
        WHERE kind = 1 AND auction_category = 10)
      JOIN (SELECT person_id, person_name, person_city, person_state FROM timeless
        WHERE kind = 0 AND person_state IN ('OR', 'ID', 'CA')) ON seller = person_id""",
    "q4": """SELECT window_end, category, AVG(CAST(price AS DOUBLE)) AS price
      FROM TABLE(TUMBLE(TABLE winning_bids, DESCRIPTOR(final_time), INTERVAL '1' MINUTE))
      GROUP BY window_start, window_end, category""",
    "q5": """SELECT window_end, number, auction FROM (
      SELECT *, ROW_NUMBER() OVER (
        PARTITION BY window_start, window_end ORDER BY number DESC, auction DESC) AS place
      FROM (SELECT window_start, window_end, auction, COUNT(*) AS number
        FROM TABLE(HOP(TABLE bids, DESCRIPTOR(`time`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY window_start, window_end, auction)
      ) WHERE place = 1""",
    "q7": """SELECT `time`, auction, bidder, price
      FROM (SELECT * FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(`time`), INTERVAL '10' SECOND))) B
      JOIN (SELECT window_start, window_end, MAX(price) AS most
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(`time`), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end) H
      ON B.window_start = H.window_start AND B.window_end = H.window_end AND price = most""",
    "q8": """SELECT P.window_end, id, name
      FROM (SELECT * FROM TABLE(TUMBLE(TABLE persons, DESCRIPTOR(`time`), INTERVAL '10' SECOND))) P
      JOIN (SELECT * FROM TABLE(TUMBLE(TABLE sellers, DESCRIPTOR(`time`), INTERVAL '10' SECOND))) S
      ON P.window_start = S.window_start AND P.window_end = S.window_end AND id = seller""",
    "q9": "SELECT final AS window_end, id, category, price, placed, bidder FROM winning_bids",
    "q11": """SELECT window_end, bidder, COUNT(*) AS number
      FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(`time`), INTERVAL '10' SECOND))
      GROUP BY window_start, window_end, bidder""",
}


def main() -> None:
    """Run a query on a state backend, anew or from a checkpoint."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    job: dict[str, Any] = json.loads(sys.argv[1])
    configuration = Configuration()
    for key, value in job["settings"].items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration)
    environment = TableEnvironment.create(settings.build())
    for name, watermark in TABLES.items():
        environment.execute_sql(EVENTS.format(name=name, events=job["events"], watermark=watermark))
    for name, select in VIEWS.items():
        environment.execute_sql(f"CREATE VIEW {name} AS {select}")
    environment.create_temporary_view("query", environment.sql_query(QUERIES[job["query"]]))
    began = time.monotonic()
    print("began", flush=True)
    environment.execute_sql(
        "CREATE TABLE output WITH ('connector' = 'filesystem', 'format' = 'csv', "
        f"'path' = '{job['output']}') AS SELECT * FROM query"
    ).wait()
    print(json.dumps({"query": time.monotonic() - began}), flush=True)
    # The processes' figures are read before they end.
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Group clicks of a Kafka topic into visits, and write them to another topic.

python examples/kafka_sessions.py localhost:9092 clicks visits --checkpoint /data/checkpoints/visits

The values of both topics are JSON. With --sample it first writes clicks. A second run reads only what came
since.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore

# The newest connector that Maven Central has; Spark 4.3 runs it, too.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"

# The last click only moves the watermark, so that the visits before it end.
SAMPLE = [
    ("ann", "2025-01-01T09:00:00Z"),
    ("bob", "2025-01-01T09:10:00Z"),
    ("ann", "2025-01-01T09:20:00Z"),
    ("ann", "2025-01-01T09:45:00Z"),
    ("bob", "2025-01-01T10:30:00Z"),
    ("eve", "2025-01-02T00:00:00Z"),
]


def write_sample(spark: SparkSession, servers: str, topic: str) -> None:
    clicks = spark.createDataFrame(SAMPLE, "user string, time string")
    messages = clicks.select(f.col("user").alias("key"), f.to_json(f.struct("user", "time")).alias("value"))
    messages.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic).save()


def visits_of(messages: DataFrame) -> DataFrame:
    click = f.from_json(f.col("value").cast("string"), "user string, time timestamp")
    visits = (
        messages.select(click.alias("click"))
        .select("click.*")
        .withWatermark("time", "1 hour")
        .groupBy(f.session_window("time", "30 minutes").alias("visit"), "user")
        .agg(f.count("*").alias("clicks"))
        .select("user", "visit.start", "visit.end", "clicks")
    )
    # Messages with one key are in one partition, in the order in which their visits ended.
    return visits.select(f.col("user").alias("key"), f.to_json(f.struct("*")).alias("value"))


def print_topic(spark: SparkSession, servers: str, topic: str) -> None:
    messages = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    values = messages.option("subscribe", topic).load().selectExpr("cast(value as string) value")
    # Kafka's sink delivers at least once: a batch that runs again after a failure writes its messages again.
    for row in values.distinct().orderBy("value").collect():
        print(row.value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", help="addresses of brokers, as HOST:PORT,HOST:PORT")
    parser.add_argument("clicks", help="topic that is read")
    parser.add_argument("visits", help="topic that is written")
    parser.add_argument("--checkpoint", required=True, help="checkpoint location, a path or URL")
    parser.add_argument("--jars", help="jars of the connector; by default Spark fetches them")
    parser.add_argument("--sample", action="store_true", help="write clicks first")
    parser.add_argument("--follow", action="store_true", help="run until it is stopped, and print nothing")
    arguments = parser.parse_args()

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config(*(("spark.jars", arguments.jars) if arguments.jars else ("spark.jars.packages", CONNECTOR)))
    )
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if arguments.sample:
        write_sample(spark, arguments.servers, arguments.clicks)

    clicks = spark.readStream.format("kafka").option("kafka.bootstrap.servers", arguments.servers)
    clicks = clicks.option("subscribe", arguments.clicks).option("startingOffsets", "earliest")
    sink = visits_of(clicks.load()).writeStream.format("kafka").option("topic", arguments.visits)
    sink = sink.option("kafka.bootstrap.servers", arguments.servers).option(
        "checkpointLocation", arguments.checkpoint
    )
    query = (sink if arguments.follow else sink.trigger(availableNow=True)).start()
    query.awaitTermination()
    print_topic(spark, arguments.servers, arguments.visits)
    spark.stop()


if __name__ == "__main__":
    main()

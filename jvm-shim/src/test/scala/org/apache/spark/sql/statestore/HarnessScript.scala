package org.apache.spark.sql.statestore

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ArrayNode

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** An open iterator of any kind: over pairs, or over the values of one key. */
private[statestore] final class HarnessIterator(
    val family: String,
    declared: HarnessFamily,
    val rows: Iterator[UnsafeRowPair],
    values: Iterator[UnsafeRow],
    val close: () => Unit) {

  def hasNext: Boolean = if (rows != null) rows.hasNext else values.hasNext

  /** Returns the next row as JSON; `between` runs while the row is valid. */
  def next(between: UnsafeRowPair => Unit = _ => ()): JsonNode =
    if (rows != null) {
      val pair = rows.next()
      between(pair)
      RowCodec.mapper.createArrayNode().add(declared.keys.json(pair.key)).add(declared.values.json(pair.value))
    } else {
      declared.values.json(values.next())
    }
}

/**
 * Interpreter of scripts for a harness, which run many operations in one call: each is an array of its
 * name, the number of a store, the name of a family and more arguments. Rows are arrays of their columns.
 * Exceptions propagate unchanged.
 */
private[statestore] final class HarnessScript(harness: ProviderHarness) {
  import RowCodec.mapper

  def run(script: String): String = {
    val results = mapper.createArrayNode()
    mapper.readTree(script).forEach { operation =>
      execute(operation) match {
        case () => results.addNull()
        case result => results.add(mapper.valueToTree[JsonNode](result))
      }
    }
    mapper.writeValueAsString(results)
  }

  // JSON, or something that goes into it.
  private def execute(operation: JsonNode): Any = {
    val number = operation.get(1).asInt
    operation.get(0).asText match {
      case "open" =>
        harness.stores.put(number, Newest.provider(harness.provider).getStore(operation.get(2).asLong,
          option(operation.get(3)), operation.get(4).asBoolean, operation.get(5).asBoolean))
        null
      case "openRead" =>
        harness.stores.put(number,
          harness.provider.getReadStore(operation.get(2).asLong, option(operation.get(3))))
        null
      case "openReplay" =>
        harness.stores.put(number, Newest.replay(harness.provider)
          .replayReadStateFromSnapshot(operation.get(2).asLong, operation.get(3).asLong, None, None))
      case "release" => newest(number).release()
      case "abort" => harness.stores.get(number).abort()
      case "commit" => writing(number).commit()
      case "hasCommitted" => writing(number).hasCommitted
      case "checkpointId" => writing(number).getStateStoreCheckpointInfo().stateStoreCkptId.orNull
      case "baseCheckpointId" => writing(number).getStateStoreCheckpointInfo().baseStateStoreCkptId.orNull
      case "metrics" => metrics(writing(number))
      case "families" =>
        val names = mapper.createArrayNode()
        newest(number).allColumnFamilyNames.toSeq.sorted.foreach(names.add(_))
        names
      case "next" => next(harness.iterators.get(number), operation.get(2).asInt, _ => ())
      case "nextRemoved" =>
        val iterator = harness.iterators.get(number)
        val store = writing(operation.get(3).asInt)
        next(iterator, operation.get(2).asInt, pair => store.remove(pair.key, iterator.family))
      case "nextOverwritten" => nextOverwritten(harness.iterators.get(number), operation.get(2).asInt)
      case "seek" =>
        val iterator = harness.iterators.get(number)
        Newest.seek(iterator.rows, declared(iterator.family).prefixes.row(operation.get(2)))
      case "closeIterator" => harness.iterators.remove(number).close()
      // As operators do, which pass the same object each time.
      case name => inFamily(name, number, operation.get(2).asText.intern(), operation)
    }
  }

  private def inFamily(name: String, number: Int, family: String, operation: JsonNode): Any = {
    lazy val keys = declared(family).keys
    lazy val values = declared(family).values
    def key: UnsafeRow = keys.row(operation.get(3))
    def value: UnsafeRow = values.row(operation.get(4))
    name match {
      case "record" =>
        harness.record(family, new HarnessFamily(operation.get(3)))
        null
      case "create" | "register" =>
        val newFamily = new HarnessFamily(operation.get(3))
        if (name == "create") {
          writing(number).createColFamilyIfAbsent(
            family, newFamily.keySchema, newFamily.valueSchema, newFamily.spec, newFamily.multiple, newFamily.internal)
        } else {
          newest(number).registerColFamily(
            family, newFamily.keySchema, newFamily.valueSchema, newFamily.spec, newFamily.multiple, newFamily.internal)
        }
        harness.families.put(family, newFamily)
        null
      case "changes" => changes(family, operation.get(3).asLong, operation.get(4).asLong)
      case "removeFamily" => writing(number).removeColFamilyIfExists(family)
      case "put" => writing(number).put(key, value, family)
      case "merge" => writing(number).merge(key, value, family)
      case "putList" => newestWriting(number).putList(key, values.rows(operation.get(4)), family)
      case "mergeList" => newestWriting(number).mergeList(key, values.rows(operation.get(4)), family)
      case "remove" => writing(number).remove(key, family)
      case "deleteRange" =>
        newestWriting(number).deleteRange(key.copy(), keys.row(operation.get(4)), family)
      case "get" => values.json(reading(number).get(key, family))
      case "getBefore" =>
        val row = reading(number).get(key, family)
        reading(operation.get(4).asInt).get(keys.row(operation.get(5)), family)
        values.json(row)
      case "exists" => newest(number).keyExists(key, family)
      case "multiGet" =>
        val array = mapper.createArrayNode()
        newest(number).multiGet(keys.rows(operation.get(3)), family).foreach(row => array.add(values.json(row)))
        array
      case "scan" =>
        val iterator = scan(reading(number), family, operation.get(3).asText, operation)
        try next(iterator, Int.MaxValue, _ => ()) finally iterator.close()
      case "openIterator" =>
        harness.iterators.put(operation.get(operation.size - 1).asInt,
          scan(reading(number), family, operation.get(3).asText, operation))
        null
    }
  }

  private def changes(family: String, startVersion: Long, endVersion: Long): JsonNode = {
    val reader = Newest.replay(harness.provider)
      .getStateStoreChangeDataReader(startVersion, endVersion, Some(family), None)
    val array = mapper.createArrayNode()
    try {
      reader.foreach { case (kind, key, value, batchId) =>
        array.addArray().add(batchId).add(RecordType.getRecordTypeAsString(kind))
          .add(declared(family).keys.json(key))
          .add(if (value == null) null else declared(family).values.json(value))
      }
    } finally {
      reader.closeIfNeeded()
    }
    array
  }

  private def scan(
      store: ReadStateStore, family: String, kind: String, operation: JsonNode): HarnessIterator = {
    val rows = declared(family)
    lazy val newest = Newest.reading(store)
    def prefix: UnsafeRow = rows.prefixes.row(operation.get(4))
    def bound(i: Int): Option[UnsafeRow] =
      Option(operation.get(i)).filterNot(_.isNull).map(rows.keys.row(_).copy())
    def pairs(pairIterator: StateStoreIterator[UnsafeRowPair]) =
      new HarnessIterator(family, rows, pairIterator, null, () => pairIterator.close())
    kind match {
      case "all" => pairs(store.iterator(family))
      case "allValues" => pairs(newest.iteratorWithMultiValues(family))
      case "prefix" => pairs(store.prefixScan(prefix, family))
      case "prefixValues" => pairs(newest.prefixScanWithMultiValues(prefix, family))
      case "range" => pairs(newest.rangeScan(bound(4), bound(5), family))
      case "rangeValues" => pairs(newest.rangeScanWithMultiValues(bound(4), bound(5), family))
      case "values" =>
        val valueIterator = store.valuesIterator(rows.keys.row(operation.get(4)), family)
        new HarnessIterator(family, rows, null, valueIterator, () => ())
      case "multiGet" =>
        val valueIterator = newest.multiGet(rows.keys.rows(operation.get(4)), family)
        new HarnessIterator(family, rows, null, valueIterator, () => ())
      case "reusable" =>
        val pairIterator = Newest.reusableIterator(store, family)
        new HarnessIterator(family, rows, pairIterator, null, () => pairIterator.close())
    }
  }

  private def next(iterator: HarnessIterator, limit: Int, between: UnsafeRowPair => Unit): ArrayNode = {
    val array = mapper.createArrayNode()
    while (array.size < limit && iterator.hasNext) array.add(iterator.next(between))
    array
  }

  /** Read as Spark's StateStoreSuite does, which puts copies into the pair; then take even those out of it. */
  private def nextOverwritten(iterator: HarnessIterator, limit: Int): ArrayNode = {
    var lastPair: UnsafeRowPair = null
    val array = mapper.createArrayNode()
    while (array.size < limit && iterator.hasNext && iterator.hasNext) {
      if (lastPair != null) lastPair.withRows(null, null)
      array.add(iterator.next { pair =>
        pair.withRows(pair.key.copy(), pair.value.copy())
        lastPair = pair
        iterator.hasNext
      })
    }
    array
  }

  private def metrics(store: StateStore): JsonNode = {
    val node = mapper.createObjectNode()
    harness.provider.supportedCustomMetrics.foreach(metric => node.put(metric.name, 0L))
    store.metrics.customMetrics.foreach { case (metric, value) => node.put(metric.name, value) }
    node.put("numKeys", store.metrics.numKeys).put("memoryUsedBytes", store.metrics.memoryUsedBytes)
  }

  // A family that was never declared has the default's rows, so that a store can be asked for it.
  private def declared(family: String): HarnessFamily = harness.families.getOrDefault(
    family, harness.families.get(StateStore.DEFAULT_COL_FAMILY_NAME))

  private def reading(number: Int): ReadStateStore = harness.stores.get(number)

  private def newest(number: Int): Newest.ReadStore = Newest.reading(reading(number))

  private def newestWriting(number: Int): Newest.WriteStore = Newest.writing(writing(number))

  private def writing(number: Int): StateStore = harness.stores.get(number).asInstanceOf[StateStore]

  private def option(node: JsonNode): Option[String] = Option(node).filterNot(_.isNull).map(_.asText)
}

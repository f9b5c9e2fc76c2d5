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

  /** The next row as JSON; `between` is done while the iterator stands on it. */
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
 * What a test may ask of a harness, in one call for many operations: each is an array of its name,
 * the number of a store, the name of a family and more arguments. Rows are arrays of their columns.
 * Exceptions go up as they are.
 */
private[statestore] final class HarnessScript(harness: ProviderHarness) {
  import RowCodec.mapper

  def run(script: String): String = {
    val results = mapper.createArrayNode()
    mapper.readTree(script).forEach { operation =>
      one(operation) match {
        case () => results.addNull()
        case result => results.add(mapper.valueToTree[JsonNode](result))
      }
    }
    mapper.writeValueAsString(results)
  }

  // JSON, or something that goes into it.
  private def one(operation: JsonNode): Any = {
    val number = operation.get(1).asInt
    operation.get(0).asText match {
      case "open" =>
        harness.stores.put(number, harness.provider.getStore(operation.get(2).asLong,
          option(operation.get(3)), operation.get(4).asBoolean, operation.get(5).asBoolean))
        null
      case "openRead" =>
        harness.stores.put(number,
          harness.provider.getReadStore(operation.get(2).asLong, option(operation.get(3))))
        null
      case "release" => harness.stores.get(number).release()
      case "abort" => harness.stores.get(number).abort()
      case "commit" => writing(number).commit()
      case "hasCommitted" => writing(number).hasCommitted
      case "checkpointId" => writing(number).getStateStoreCheckpointInfo().stateStoreCkptId.orNull
      case "baseCheckpointId" => writing(number).getStateStoreCheckpointInfo().baseStateStoreCkptId.orNull
      case "metrics" => metrics(writing(number))
      case "families" =>
        val names = mapper.createArrayNode()
        harness.stores.get(number).allColumnFamilyNames.toSeq.sorted.foreach(names.add(_))
        names
      case "next" => next(harness.iterators.get(number), operation.get(2).asInt, _ => ())
      case "nextRemoved" =>
        val iterator = harness.iterators.get(number)
        val store = writing(operation.get(3).asInt)
        next(iterator, operation.get(2).asInt, pair => store.remove(pair.key, iterator.family))
      case "seek" =>
        val iterator = harness.iterators.get(number)
        iterator.rows.asInstanceOf[ReusableIterator[UnsafeRowPair]].refreshAndSeekToPrefix(
          declared(iterator.family).prefixes.row(operation.get(2)))
      case "closeIterator" => harness.iterators.remove(number).close()
      case name => inFamily(name, number, operation.get(2).asText, operation)
    }
  }

  private def inFamily(name: String, number: Int, family: String, operation: JsonNode): Any = {
    lazy val keys = declared(family).keys
    lazy val values = declared(family).values
    def key: UnsafeRow = keys.row(operation.get(3))
    def value: UnsafeRow = values.row(operation.get(4))
    name match {
      case "create" | "register" =>
        val wanted = new HarnessFamily(operation.get(3))
        if (name == "create") {
          writing(number).createColFamilyIfAbsent(
            family, wanted.keySchema, wanted.valueSchema, wanted.spec, wanted.multiple, wanted.internal)
        } else {
          reading(number).registerColFamily(
            family, wanted.keySchema, wanted.valueSchema, wanted.spec, wanted.multiple, wanted.internal)
        }
        harness.families.put(family, wanted)
        null
      case "removeFamily" => writing(number).removeColFamilyIfExists(family)
      case "put" => writing(number).put(key, value, family)
      case "merge" => writing(number).merge(key, value, family)
      case "putList" => writing(number).putList(key, values.rows(operation.get(4)), family)
      case "mergeList" => writing(number).mergeList(key, values.rows(operation.get(4)), family)
      case "remove" => writing(number).remove(key, family)
      case "deleteRange" =>
        writing(number).deleteRange(key.copy(), keys.row(operation.get(4)), family)
      case "get" => values.json(reading(number).get(key, family))
      case "exists" => reading(number).keyExists(key, family)
      case "multiGet" =>
        val found = mapper.createArrayNode()
        reading(number).multiGet(keys.rows(operation.get(3)), family).foreach(row => found.add(values.json(row)))
        found
      case "scan" =>
        val iterator = scan(reading(number), family, operation.get(3).asText, operation)
        try next(iterator, Int.MaxValue, _ => ()) finally iterator.close()
      case "openIterator" =>
        harness.iterators.put(operation.get(operation.size - 1).asInt,
          scan(reading(number), family, operation.get(3).asText, operation))
        null
    }
  }

  private def scan(
      store: ReadStateStore, family: String, kind: String, operation: JsonNode): HarnessIterator = {
    val rows = declared(family)
    def prefix: UnsafeRow = rows.prefixes.row(operation.get(4))
    def bound(i: Int): Option[UnsafeRow] =
      Option(operation.get(i)).filterNot(_.isNull).map(rows.keys.row(_).copy())
    def pairs(found: StateStoreIterator[UnsafeRowPair]) =
      new HarnessIterator(family, rows, found, null, () => found.close())
    kind match {
      case "all" => pairs(store.iterator(family))
      case "allValues" => pairs(store.iteratorWithMultiValues(family))
      case "prefix" => pairs(store.prefixScan(prefix, family))
      case "prefixValues" => pairs(store.prefixScanWithMultiValues(prefix, family))
      case "range" => pairs(store.rangeScan(bound(4), bound(5), family))
      case "rangeValues" => pairs(store.rangeScanWithMultiValues(bound(4), bound(5), family))
      case "values" =>
        val found = store.valuesIterator(rows.keys.row(operation.get(4)), family)
        new HarnessIterator(family, rows, null, found, () => ())
      case "reusable" =>
        val found = store.asInstanceOf[SupportsReusableIterator].reusableIterator(family)
        new HarnessIterator(family, rows, found, null, () => found.close())
    }
  }

  private def next(iterator: HarnessIterator, limit: Int, between: UnsafeRowPair => Unit): ArrayNode = {
    val found = mapper.createArrayNode()
    while (found.size < limit && iterator.hasNext) found.add(iterator.next(between))
    found
  }

  private def metrics(store: StateStore): JsonNode = {
    val node = mapper.createObjectNode()
    store.metrics.customMetrics.foreach { case (metric, value) => node.put(metric.name, value) }
    node.put("numKeys", store.metrics.numKeys).put("memoryUsedBytes", store.metrics.memoryUsedBytes)
  }

  // A family that was never declared has the default's rows, so that a store can be asked for it.
  private def declared(family: String): HarnessFamily = harness.families.getOrDefault(
    family, harness.families.get(StateStore.DEFAULT_COL_FAMILY_NAME))

  private def reading(number: Int): ReadStateStore = harness.stores.get(number)

  private def writing(number: Int): StateStore = harness.stores.get(number).asInstanceOf[StateStore]

  private def option(node: JsonNode): Option[String] = Option(node).filterNot(_.isNull).map(_.asText)
}

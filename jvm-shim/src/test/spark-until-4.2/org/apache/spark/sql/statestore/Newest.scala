package org.apache.spark.sql.statestore

import java.io.Closeable
import java.lang.reflect.{InvocationTargetException, Method, Proxy}

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.statestore.compat.{NewestFineGrainedReplay, NewestReadStateStore, NewestStateStore,
  NewestStateStoreProvider}

/** An operation of Spark's newest interfaces that Spark's own stores lack in this release. */
final class MissingInSparkException(name: String)
  extends RuntimeException(s"Spark's own stores have no $name in $SPARK_VERSION")

/**
 * Spark's interfaces of the newest release. Of all stores on this Spark only this package's have them: those of
 * Spark get a proxy that calls the same method, or its predecessor.
 */
private[statestore] object Newest {
  type ReadStore = NewestReadStateStore
  type WriteStore = NewestStateStore

  def provider(storeProvider: StateStoreProvider): NewestStateStoreProvider = adapt(storeProvider, classOf[NewestStateStoreProvider])

  def replay(storeProvider: StateStoreProvider): NewestFineGrainedReplay = adapt(storeProvider, classOf[NewestFineGrainedReplay])

  def reading(store: ReadStateStore): ReadStore = adapt(store, classOf[NewestReadStateStore])

  def writing(store: StateStore): WriteStore = adapt(store, classOf[NewestStateStore])

  def reusableIterator(store: ReadStateStore, family: String): Iterator[UnsafeRowPair] with Closeable =
    throw new MissingInSparkException("reusableIterator")

  def seek(iterator: Iterator[UnsafeRowPair], prefix: UnsafeRow): Unit =
    throw new MissingInSparkException("reusableIterator")

  /** Methods with other names in earlier releases. */
  private val predecessors = Map(
    "doSnapshotMaintenance" -> "doMaintenance", "doCleanupMaintenance" -> "doMaintenance", "release" -> "abort")

  private def adapt[T](sparkObject: AnyRef, interface: Class[T]): T =
    if (interface.isInstance(sparkObject)) {
      interface.cast(sparkObject)
    } else {
      interface.cast(Proxy.newProxyInstance(interface.getClassLoader, Array[Class[_]](interface),
        (_: Any, method: Method, arguments: Array[AnyRef]) => forward(sparkObject, method, Option(arguments).getOrElse(Array.empty))))
    }

  private def forward(sparkObject: AnyRef, method: Method, arguments: Array[AnyRef]): AnyRef = {
    // Parameters that a later release added may be omitted if they are unset.
    val required = arguments.lastIndexWhere(value => value != None && value != false) + 1
    val names = Seq(method.getName) ++ predecessors.get(method.getName)
    val candidates = for {
      name <- names.iterator
      count <- arguments.length to required by -1
      method <- declared(sparkObject.getClass, name, method.getParameterTypes.take(count))
    } yield (method, count)
    val (target, count) = candidates.nextOption().getOrElse(throw new MissingInSparkException(method.getName))
    target.setAccessible(true)
    try target.invoke(sparkObject, arguments.take(count): _*) catch {
      case e: InvocationTargetException => throw e.getCause
    }
  }

  private def declared(in: Class[_], name: String, parameters: Array[Class[_]]): Option[Method] =
    try Some(in.getMethod(name, parameters: _*)) catch {
      case _: NoSuchMethodException => None
    }
}

package org.apache.spark.sql.statestore

import java.io.IOException

import org.apache.spark.{QueryContext, SparkException, SparkRuntimeException, SparkThrowableHelper}
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors

/** Error messages, and errors with Spark's error conditions. */
private[statestore] object Errors {
  private val CannotLoad = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
  private val NoVersion = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"
  private val NoSnapshot = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE"

  // Python's classes for a version that does not exist.
  private val Missing = Set("CheckpointNotFoundError", "ForeignCheckpointError", "StateLostError")

  /** Returns the message without its full stop, as a clause of a longer sentence. */
  def clause(e: Throwable): String = String.valueOf(e.getMessage).stripSuffix(".")

  /** Builds the error for an operation that the store does not permit yet, or not any more. */
  def outOfOrder(message: String): SparkRuntimeException = StateStoreErrors.stateStoreOperationOutOfOrder(message)

  /** Returns the warning that another run of a batch's stage counts than that whose changes are in memory. */
  def otherAttempt(batch: Long, store: String): String =
    s"the stage of batch $batch with this store ran more than once, and Spark has accepted another run's changes than those in " +
      "memory: they are loaded from storage in each batch in which that happens, or the whole state if the version before is not " +
      s"in memory. If foreachBatch uses its batch several times, begin with batch.persist(), which runs the stage once: $store"

  /**
   * Builds the error for a failed load.
   *
   * @param file         the version, in the place of Spark's file name
   * @param snapshotOf   the provider's class, if a replay failed
   */
  def loadFailure(cause: Throwable, file: String, snapshotOf: Option[Class[_]]): SparkException = {
    val (condition, parameters) = cause match {
      case e: BackendException if Missing(e.kind) =>
        val named = Map("fileToRead" -> file)
        snapshotOf.fold((NoVersion, named))(provider => (NoSnapshot, named + ("clazz" -> provider.getName)))
      case _ => (CannotLoad, Map.empty[String, String])
    }
    // PySpark shows the outermost message only, so the cause's must be part of it.
    new SparkException(
      s"[$condition] An error occurred during loading state: ${cause.getMessage}", cause, Some(condition), parameters,
      Array.empty[QueryContext])
  }
}

/**
 * A failure that the Python backend reported, or a failure to reach it.
 *
 * @param kind  name of the Python error class, or "Transport" if no answer arrived
 */
private[statestore] class BackendException(val kind: String, message: String, cause: Throwable = null)
  extends IOException(message, cause)

/** The connection broke or the process ended before an answer arrived. A retry is safe. */
private[statestore] final class BackendConnectionException(message: String, cause: Throwable = null)
  extends BackendException("Transport", message, cause)

/** No answer within the timeout. The task fails; Spark may retry it. */
private[statestore] final class BackendTimeoutException(message: String)
  extends BackendException("Timeout", message)

/** The backend cannot be started; a retry would fail the same way. */
private[statestore] final class BackendStartException(message: String, cause: Throwable = null)
  extends BackendException("Start", message, cause)

/** The jar was compiled against another minor version of Spark than the running one. */
private[statestore] final class IncompatibleSparkException(message: String)
  extends IllegalStateException(message)

/** An unknown option, or an invalid value of one. */
private[statestore] final class InvalidOptionException(message: String, cause: Throwable = null)
  extends IllegalArgumentException(message, cause)

/** Memory storage without a directory whose executors cannot reach the driver. */
private[statestore] final class MissingPluginException(message: String)
  extends IllegalStateException(message)

/**
 * Use of a store that has committed, was aborted or released, or whose state was handed to a newer attempt,
 * which must not commit.
 */
private[statestore] final class EndedStoreException(version: Long, message: String)
  extends SparkRuntimeException(
    EndedStoreException.condition, EndedStoreException.parameters(version, message), null, Array.empty[QueryContext],
    EndedStoreException.summary(message))

private[statestore] object EndedStoreException {
  private val InvalidStamp = "STATE_STORE_INVALID_STAMP"

  // Spark 4.0 lacks the condition; its RocksDB provider reports such a use as out of order.
  private lazy val hasStamps = SparkThrowableHelper.isValidErrorClass(InvalidStamp)

  // Spark's stamp of a store that has ended.
  private val NoStamp = "-1"

  /** The error of a task whose store is not the current one any more, on top of a version. */
  def notCommitted(version: Long, store: String): EndedStoreException = new EndedStoreException(version,
    s"version ${version + 1} of $store is not committed by this task: the task was killed, a store was opened at a later version, " +
      "which Spark has committed, or the store was unloaded. Nothing is lost: another attempt commits it, and a retry of the task " +
      "starts from the committed version.")

  /** The error of an abort while a thread of the task still writes. */
  def inUse(version: Long, store: String): EndedStoreException = new EndedStoreException(version,
    s"the changes to version $version of $store were not undone in memory: ten seconds after its task ended, a thread of the task is " +
      "still inside an operation. Nothing is lost: the next task loads the version from the checkpoint.")

  private def condition: String = if (hasStamps) InvalidStamp else "STATE_STORE_OPERATION_OUT_OF_ORDER"

  private def parameters(version: Long, message: String): Map[String, String] =
    if (hasStamps) Map("providedStamp" -> version.toString, "currentStamp" -> NoStamp) else Map("errorMsg" -> message)

  private def summary(message: String): String = if (hasStamps) message else ""
}

/** A feature that this provider does not support. */
private[statestore] final class UnsupportedFeatureException(message: String)
  extends UnsupportedOperationException(message)

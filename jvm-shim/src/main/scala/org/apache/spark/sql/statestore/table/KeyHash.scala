package org.apache.spark.sql.statestore.table

import java.security.SecureRandom

import org.apache.spark.unsafe.Platform

/**
 * Hash of the keys of a table, which are whole words.
 *
 * Guarantees: keys of equal hashes cannot be made without the secret. Each step folds a product of 128 bits with it. The
 * product's lower half alone has differences that can be known without the secret, and the next word could cancel them.
 *
 * @param seed    any number
 * @param secret  an odd number
 */
private[statestore] final class KeyHash(val seed: Long, val secret: Long) {

  /** Returns 32 bits for a key. */
  def apply(base: Object, offset: Long, length: Int): Int = {
    val factor = secret
    var h = seed ^ length
    var i = 0
    while (i + 8 <= length) {
      val word = h ^ Platform.getLong(base, offset + i)
      h = word * factor ^ Math.multiplyHigh(word, factor)
      i += 8
    }
    ((h * KeyHash.Multiplier) >>> 32).toInt
  }
}

private[statestore] object KeyHash {
  private final val Multiplier = 0x9e3779b97f4a7c15L

  private val random = new SecureRandom

  /** The hash of all tables of this process but those that are opened from a local copy, whose hash is in the copy. */
  val ofProcess: KeyHash = new KeyHash(random.nextLong(), random.nextLong() | 1L)
}

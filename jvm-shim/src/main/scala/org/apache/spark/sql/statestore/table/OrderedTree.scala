package org.apache.spark.sql.statestore.table

import org.apache.spark.unsafe.Platform

/**
 * Copy-on-write B+ tree over record offsets, in the order of their keys.
 *
 * Guarantees: exactly one entry for each key that was put and not removed. A snapshot is O(1), immutable,
 * and can be restored. Keys are read from the log only if their words are equal. The heap of the present nodes is
 * accounted for, and log pages are moved to make room for it; nodes that only snapshots have are not, and no node is
 * ever in a file.
 */
private[statestore] final class OrderedTree(records: Records, val order: KeyOrder) {
  import OrderedTree._

  private val log = records.log
  private val header = records.header
  private var root = new Node(null, null)
  // Nodes of another owner belong to a snapshot and are copied before a change.
  private var owner = new Object
  private var nodes = 1L

  // The path to the current entry, from the root.
  private val path = new Array[Node](MaxDepth)
  private val positions = new Array[Int](MaxDepth)
  private var depth = 0

  root.owner = owner
  log.memory.take(NodeBytes)

  def memoryBytes: Long = nodes * NodeBytes

  /** Takes a snapshot. */
  def snapshot(): Snapshot = {
    owner = new Object
    current
  }

  /** Returns the present tree without a snapshot, valid until the next change. */
  def current: Snapshot = new Snapshot(root, nodes)

  /** Returns to a snapshot. */
  def restore(to: Snapshot): Unit = {
    root = to.root
    account(to.nodes - nodes)
    owner = new Object
  }

  /** Inserts a record, or replaces the one of its key. */
  def put(offset: Long): Unit = {
    val word = descend(offset)
    val leaf = path(depth)
    val at = positions(depth)
    val page = log.page(offset)
    val hasKey = at < leaf.count && compare(leaf, at, word, page, keyAddress(page, offset), keyLength(offset)) == 0
    makeWritable()
    if (hasKey) path(depth).offsets(at) = offset
    else insert(depth, at, word, offset, null)
  }

  /** Removes the entry of a record's key. */
  def remove(offset: Long): Unit = {
    val word = descend(offset)
    val leaf = path(depth)
    val at = positions(depth)
    val page = log.page(offset)
    if (at >= leaf.count || compare(leaf, at, word, page, keyAddress(page, offset), keyLength(offset)) != 0) {
      throw new IllegalStateException(s"the order has no entry for the record at $offset")
    }
    makeWritable()
    removeAt(depth)
    while (root.children != null && root.count == 1) {
      root = root.children(0)
      account(-1L)
    }
  }

  /** Appends a record whose key is after all others. */
  def append(offset: Long): Unit = {
    depth = 0
    var node = root
    while (node.children != null) {
      path(depth) = node
      positions(depth) = node.count - 1
      node = node.children(node.count - 1)
      depth += 1
    }
    path(depth) = node
    positions(depth) = node.count
    makeWritable()
    insert(depth, node.count, wordOf(offset), offset, null)
  }

  private def wordOf(offset: Long): Long = {
    val page = log.page(offset)
    order.word(page, keyAddress(page, offset), keyLength(offset))
  }

  private def keyAddress(page: AnyRef, offset: Long): Long = log.address(page, offset) + header

  private def keyLength(offset: Long): Int = records.keyLengthOf(offset)

  // Sets the path to the position of a record's key; returns the key's word.
  private def descend(offset: Long): Long = {
    val base = log.page(offset)
    val key = keyAddress(base, offset)
    val length = keyLength(offset)
    val word = order.word(base, key, length)
    depth = 0
    var node = root
    while (node.children != null) {
      // The last child that starts at or before the key; the start of the first child is not a bound.
      var low = 1
      var high = node.count
      while (low < high) {
        val middle = (low + high) >>> 1
        if (compare(node, middle, word, base, key, length) <= 0) low = middle + 1 else high = middle
      }
      path(depth) = node
      positions(depth) = low - 1
      node = node.children(low - 1)
      depth += 1
    }
    var low = 0
    var high = node.count
    while (low < high) {
      val middle = (low + high) >>> 1
      if (compare(node, middle, word, base, key, length) < 0) low = middle + 1 else high = middle
    }
    path(depth) = node
    positions(depth) = low
    word
  }

  private def compare(node: Node, at: Int, word: Long, base: Object, key: Long, length: Int): Int = {
    val words = java.lang.Long.compare(node.words(at), word)
    if (words != 0) {
      words
    } else {
      val offset = node.offsets(at)
      val page = log.page(offset)
      order.compare(page, keyAddress(page, offset), keyLength(offset), base, key, length)
    }
  }

  private def makeWritable(): Unit = {
    var d = 0
    while (d <= depth) {
      if (path(d).owner ne owner) {
        val copy = path(d).copy(owner)
        if (d == 0) root = copy else path(d - 1).children(positions(d - 1)) = copy
        path(d) = copy
      }
      d += 1
    }
  }

  private def insert(d: Int, at: Int, word: Long, offset: Long, child: Node): Unit = {
    val node = path(d)
    if (node.count < Capacity) {
      node.insert(at, word, offset, child)
    } else {
      log.makeRoom(NodeBytes.toInt)
      // Ascending insertions fill their nodes.
      val middle = if (at == node.count) node.count else node.count / 2
      val right = node.split(middle)
      account(1L)
      if (at < middle) node.insert(at, word, offset, child)
      else right.insert(at - middle, word, offset, child)
      if (d > 0) {
        insert(d - 1, positions(d - 1) + 1, right.words(0), right.offsets(0), right)
      } else {
        root = new Node(owner, new Array[Node](Capacity))
        account(1L)
        root.insert(0, node.words(0), node.offsets(0), node)
        root.insert(1, right.words(0), right.offsets(0), right)
      }
    }
  }

  private def account(nodeCount: Long): Unit = {
    nodes += nodeCount
    log.memory.take(nodeCount * NodeBytes)
  }

  private def removeAt(d: Int): Unit = {
    val node = path(d)
    node.remove(positions(d))
    if (node.count == 0) {
      if (d > 0) {
        account(-1L)
        removeAt(d - 1)
      } else if (node.children != null) {
        root = new Node(owner, null)
      }
    }
  }
}

private[statestore] object OrderedTree {
  private final val Capacity = 32
  private final val MaxDepth = 32
  private final val NodeBytes = 2L * (16 + 8 * Capacity) + 40

  /**
   * A leaf with ordered entries, or an inner node with the first entry of each child.
   *
   * @param owner  identifies the tree generation that may change it
   */
  final class Node private[OrderedTree] (var owner: AnyRef, val children: Array[Node]) {
    val words = new Array[Long](Capacity)
    val offsets = new Array[Long](Capacity)
    var count = 0

    def copy(by: AnyRef): Node = {
      val node = new Node(by, if (children == null) null else new Array[Node](Capacity))
      moveTo(node, 0)
      node
    }

    /** Moves the entries from `at` on into a new node. */
    def split(at: Int): Node = {
      val right = new Node(owner, if (children == null) null else new Array[Node](Capacity))
      moveTo(right, at)
      if (children != null) java.util.Arrays.fill(children.asInstanceOf[Array[Object]], at, count, null)
      count = at
      right
    }

    def insert(at: Int, word: Long, offset: Long, child: Node): Unit = {
      shift(at, at + 1)
      words(at) = word
      offsets(at) = offset
      if (children != null) children(at) = child
      count += 1
    }

    def remove(at: Int): Unit = {
      shift(at + 1, at)
      count -= 1
      if (children != null) children(count) = null
    }

    private def shift(from: Int, to: Int): Unit = {
      val moved = count - from
      System.arraycopy(words, from, words, to, moved)
      System.arraycopy(offsets, from, offsets, to, moved)
      if (children != null) System.arraycopy(children, from, children, to, moved)
    }

    private def moveTo(target: Node, from: Int): Unit = {
      target.count = count - from
      System.arraycopy(words, from, target.words, 0, target.count)
      System.arraycopy(offsets, from, target.offsets, 0, target.count)
      if (children != null) System.arraycopy(children, from, target.children, 0, target.count)
    }
  }

  /** A tree at one moment. */
  final class Snapshot private[OrderedTree] (private[OrderedTree] val root: Node, private[OrderedTree] val nodes: Long)

  /**
   * One end of a range.
   *
   * @param bytes    the bytes of its key
   * @param leading  whether the end is before, or after, all keys that start as this one
   */
  private[table] final class Bound(order: KeyOrder, bytes: Array[Byte], leading: Boolean) {
    private val length = bytes.length
    private val word = order.word(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length)

    /** Compares an entry with the bound. */
    def compare(view: LogView, header: Int, entryWord: Long, offset: Long): Int = {
      val words = java.lang.Long.compare(entryWord, word)
      if (words != 0) {
        words
      } else {
        val page = view.page(offset)
        val record = view.address(page, offset)
        val keyLength = Record.keyLength(Platform.getLong(page, record + Record.Link))
        if (leading) {
          order.compareLeading(page, record + header, keyLength, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length)
        } else {
          order.compare(page, record + header, keyLength, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length)
        }
      }
    }
  }

  /**
   * Cursor over the entries of an immutable tree from `start` (inclusive) to `end` (exclusive, inclusive
   * with `through`); null is no bound.
   */
  private[table] final class Cursor(
      tree: Snapshot, view: LogView, header: Int, start: Bound, end: Bound, through: Boolean)
    extends RowCursor {

    private val path = new Array[Node](MaxDepth)
    private val positions = new Array[Int](MaxDepth)
    private var depth = 0
    private var ended = false

    private var current = Record.None

    seek()

    override def offset: Long = current

    override def advance(): Boolean = {
      if (!ended) {
        while (depth > 0 && positions(depth) >= path(depth).count) climb()
        val leaf = path(depth)
        val at = positions(depth)
        if (leaf.children != null || at >= leaf.count || isBeyond(leaf, at)) {
          ended = true
        } else {
          current = leaf.offsets(at)
          positions(depth) = at + 1
        }
      }
      !ended
    }

    private def isBeyond(leaf: Node, at: Int): Boolean = end != null && {
      val order = end.compare(view, header, leaf.words(at), leaf.offsets(at))
      if (through) order > 0 else order >= 0
    }

    // To the next leaf, or to an ancestor that has no more children.
    private def climb(): Unit = {
      depth -= 1
      positions(depth) += 1
      while (path(depth).children != null && positions(depth) < path(depth).count) {
        path(depth + 1) = path(depth).children(positions(depth))
        depth += 1
        positions(depth) = 0
      }
    }

    private def seek(): Unit = {
      var node = tree.root
      while (node.children != null) {
        path(depth) = node
        positions(depth) = if (start == null) 0 else math.max(0, firstFrom(node, 1) - 1)
        node = node.children(positions(depth))
        depth += 1
      }
      path(depth) = node
      positions(depth) = if (start == null) 0 else firstFrom(node, 0)
    }

    // The first entry from `low` on that is not before the start.
    private def firstFrom(node: Node, from: Int): Int = {
      var low = from
      var high = node.count
      while (low < high) {
        val middle = (low + high) >>> 1
        if (start.compare(view, header, node.words(middle), node.offsets(middle)) < 0) low = middle + 1
        else high = middle
      }
      low
    }
  }
}

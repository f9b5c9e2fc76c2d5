package org.apache.spark.sql.statestore.arrow

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.arrow.vector.ipc.ArrowStreamReader

import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}

/** Rows of an Arrow stream in the bytes of Spark's own projection. */
object ProjectedRows {

  /**
   * Writes the offsets of the rows and their bytes to two files, as in the buffers of an Arrow array.
   *
   * The vectors are read as the schema's types, whatever their own: months as 32-bit integers, for example.
   */
  def write(stream: String, schema: String, offsets: String, data: String): Unit = {
    val project = UnsafeProjection.create(DataType.fromJson(schema).asInstanceOf[StructType])
    val bytes, ends = new ByteArrayOutputStream
    val number = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN)
    ends.write(number.putInt(0, 0).array)
    Using.resources(
      ArrowUtils.rootAllocator.newChildAllocator("ProjectedRows", 0, Long.MaxValue),
      Files.newInputStream(Path.of(stream))
    ) { (allocator, in) =>
      Using.resource(new ArrowStreamReader(in, allocator)) { reader =>
        val root = reader.getVectorSchemaRoot
        while (reader.loadNextBatch()) {
          val columns = root.getFieldVectors.asScala.map(new ArrowColumnVector(_): ColumnVector)
          new ColumnarBatch(columns.toArray, root.getRowCount).rowIterator.asScala.foreach { row =>
            bytes.write(project(row).getBytes)
            ends.write(number.putInt(0, bytes.size).array)
          }
        }
      }
    }
    Files.write(Path.of(offsets), ends.toByteArray)
    Files.write(Path.of(data), bytes.toByteArray)
  }
}

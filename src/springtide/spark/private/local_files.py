"""Local files that Hadoop writes without a process: swaps the file system of the driver's JVM.

Why: Hadoop starts ``chmod`` for every file that it makes, where it lacks its native library, as in the pip package: 11 ms
of every batch.
Seen to work on: Spark 4.2 and 4.3, whose own compiler (janino) translates the thirty lines of Java below.
Without it: where Hadoop has its native library, or a user has set ``fs.file.impl``, nothing is swapped. Where the compiler
is missing, the session does not start.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

_LOCAL_FILES = """
package springtide;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
      } else {
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
      }
    }
  }
}
"""
"""Hadoop's local files, whose permissions are set by a system call."""


def write_logs_quickly(session: SparkSession) -> None:
    """Have the driver's JVM write local files, of which a batch has two, its offsets and its commit, without processes.

    Hadoop starts a process, ``chmod``, for every file that it makes, where it lacks its native library, as in the pip
    package: 5 to 6 ms. So what it has for local files is replaced, in this JVM, by ``_LOCAL_FILES``, which the compiler
    translates that Spark has for its own code; and no ``.crc`` is written beside them, as manifests have the offsets.
    """
    jvm = session._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
    root = jvm.org.apache.hadoop.fs.Path("file:///")
    if not jvm.org.apache.hadoop.io.nativeio.NativeIO.isAvailable() and conf.get("fs.file.impl") is None:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(conf.getClassLoader())
        compiler.cook(_LOCAL_FILES)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set("fs.file.impl", "springtide.LocalFiles")
        root.getFileSystem(conf).close()  # Hadoop keeps one for all who ask: the next one that is made
        root.getFileSystem(conf)
        conf.unset("fs.file.impl")  # a copy of this may go to executors, which have no such class
    root.getFileSystem(conf).setWriteChecksum(False)

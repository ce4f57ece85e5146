package io.headrace.files;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's file system for local disks, without a process per file.
 *
 * <p>Without its native library, Hadoop starts {@code chmod} for each file that it creates, and {@code readlink} for each
 * file that {@code FileContext} looks at. Spark's checkpoints and Delta's log do both: more than a hundred processes per
 * batch, and a third to a half of the processor time of a small batch. The JVM does the same with a system call.
 *
 * <p>Everything else is Hadoop's own code. Files and their checksums are the same, byte for byte.
 */
public final class LocalDisk {
  private LocalDisk() {}

  /** Local files without checksums. The two classes below add Hadoop's own checksums. */
  public static final class Raw extends RawLocalFileSystem {
    private static final PosixFilePermission[] BITS = {
      PosixFilePermission.OTHERS_EXECUTE, PosixFilePermission.OTHERS_WRITE, PosixFilePermission.OTHERS_READ,
      PosixFilePermission.GROUP_EXECUTE, PosixFilePermission.GROUP_WRITE, PosixFilePermission.GROUP_READ,
      PosixFilePermission.OWNER_EXECUTE, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_READ,
    };

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      java.nio.file.Path file = pathToFile(path).toPath();
      // The sticky bit is no POSIX permission of Java's, and a disk may have no permissions at all.
      if (permission.getStickyBit() || !file.getFileSystem().supportedFileAttributeViews().contains("posix")) {
        super.setPermission(path, permission);
        return;
      }
      Set<PosixFilePermission> granted = EnumSet.noneOf(PosixFilePermission.class);
      for (int bit = 0; bit < BITS.length; bit++) {
        if ((permission.toShort() >> bit & 1) == 1) {
          granted.add(BITS[bit]);
        }
      }
      Files.setPosixFilePermissions(file, granted);
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      boolean link = Files.isSymbolicLink(pathToFile(path).toPath());
      return link ? super.getFileLinkStatus(path) : getFileStatus(path);
    }
  }

  /** What {@code FileSystem.get} returns for {@code file:} (setting {@code fs.file.impl}). */
  public static final class WithChecksums extends LocalFileSystem {
    public WithChecksums() {
      super(new Raw());
    }
  }

  /** What {@code FileContext} uses for {@code file:} (setting {@code fs.AbstractFileSystem.file.impl}). */
  public static final class ForContexts extends ChecksumFs {
    // Hadoop calls this constructor, with the address and the settings.
    ForContexts(URI address, Configuration settings) throws IOException, URISyntaxException {
      super(new RawForContexts(settings));
    }
  }

  private static final class RawForContexts extends DelegateToFileSystem {
    RawForContexts(Configuration settings) throws IOException, URISyntaxException {
      super(FsConstants.LOCAL_FS_URI, new Raw(), settings, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    @Deprecated
    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String name) {
      // The operating system decides, as in Hadoop's own class.
      return true;
    }
  }
}

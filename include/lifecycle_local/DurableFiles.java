package message_lifecycle;

import com.globalmentor.apache.hadoop.fs.BareLocalFileSystem;
import com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, on disk when they are closed: whoever writes them, a catalog may be about to name them. Hadoop's own are in the
 * system's memory then, and may be empty after a loss of power, while the catalog's database has kept the name.
 *
 * `durable_files.jar` holds this, compiled: `python -m tests.spark.durable_files` makes it anew, and a test holds the two equal.
 */
public final class DurableFiles extends BareLocalFileSystem {
    public DurableFiles() {
        super(new Raw());
    }

    public static final class Raw extends NakedLocalFileSystem {
        protected OutputStream createOutputStreamWithMode(Path file, boolean append, FsPermission permission) throws IOException {
            return new Stream(super.createOutputStreamWithMode(file, append, permission), this.pathToFile(file).toPath());
        }

        public boolean rename(Path from, Path to) throws IOException {
            boolean done = super.rename(from, to);
            if (done) {
                Stream.name(this.pathToFile(from).toPath());
                Stream.name(this.pathToFile(to).toPath());
            }
            return done;
        }
    }

    static final class Stream extends FilterOutputStream implements Syncable {
        /** Folders whose own names are on disk. */
        private static final ConcurrentHashMap NAMED = new ConcurrentHashMap();

        private final java.nio.file.Path file;
        private boolean open = true;

        Stream(OutputStream out, java.nio.file.Path file) {
            super(out);
            this.file = file;
        }

        public void write(byte[] bytes, int from, int count) throws IOException {
            this.out.write(bytes, from, count);
        }

        public void hflush() throws IOException {
            this.out.flush();
        }

        public void hsync() throws IOException {
            this.out.flush();
            force(this.file);
        }

        public void close() throws IOException {
            if (!this.open) {
                return;
            }
            this.open = false;
            super.close();
            try {
                force(this.file);
            } catch (NoSuchFileException gone) {
                return; // it was given up before it was closed, and nobody will name it
            }
            name(this.file);
            java.nio.file.Path folder = this.file.getParent();
            while (folder.getParent() != null && !NAMED.containsKey(folder)) {
                try {
                    name(folder);
                } catch (AccessDeniedException others) {
                    return; // whoever may not read a folder has not made this one in it
                }
                NAMED.put(folder, folder);
                folder = folder.getParent();
            }
        }

        static void name(java.nio.file.Path entry) throws IOException {
            force(entry.getParent());
        }

        static void force(java.nio.file.Path path) throws IOException {
            FileChannel channel = FileChannel.open(path, new OpenOption[] {StandardOpenOption.READ});
            try {
                channel.force(true);
            } finally {
                channel.close();
            }
        }
    }
}

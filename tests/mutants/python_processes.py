"""Mutants of the file systems, and of the backend process that uses them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_LATE: Final = (
    "tests/unit/store/test_merged_commit.py"
    "::test_late_attempt_does_not_supersede_a_committed_one_beside_the_next_version"
)
_FILES: Final = "spark_statestore/files"
_BACKEND: Final = "spark_statestore/backend"
_TESTS: Final = "tests/unit"

_OF_FILES: Final = (
    Mutant(
        "local-file-not-synced",
        f"{_FILES}/local.py",
        "            if self._fsync:\n                os.fsync(fd)\n            # CPython",
        "            if not self._fsync:\n                os.fsync(fd)\n            # CPython",
        (f"{_TESTS}/store/test_faults_local.py", "-k", "every_call and small-commit"),
        "With fsync, a committed version survives a power failure.",
    ),
    Mutant(
        "local-removal-not-synced",
        f"{_FILES}/local.py",
        "        # The removal must be durable before files that the removed ones refer to are removed.\n"
        "        with contextlib.suppress(FileNotFoundError):\n            self._sync_name(path)",
        "        # The removal must be durable before files that the removed ones refer to are removed.\n"
        "        with contextlib.suppress(FileNotFoundError):\n            self._lacking_in(path)",
        (f"{_TESTS}/files/test_local_files.py",),
        "With fsync, a discarded version does not reappear without its streams after a power failure.",
    ),
    Mutant(
        "local-parent-not-synced",
        f"{_FILES}/local.py",
        "if not os.path.ismount(parent):",
        "if is_new and not os.path.ismount(parent):",
        (f"{_TESTS}/files/test_local_files.py",),
        "With fsync, a directory that a killed process made survives a power failure.",
    ),
    Mutant(
        "local-listing-error-taken-for-absence",
        f"{_FILES}/local.py",
        "            except (FileNotFoundError, NotADirectoryError):\n                continue",
        "            except OSError:\n                continue",
        (f"{_TESTS}/files/test_failing_calls.py",),
        "Holds and versions in a directory that cannot be listed for the moment are not taken for missing.",
    ),
    Mutant(
        "local-stat-error-taken-for-absence",
        f"{_FILES}/local.py",
        "        return os.stat(path).st_mode\n    except (FileNotFoundError, NotADirectoryError):",
        "        return os.stat(path).st_mode\n    except OSError:",
        (f"{_TESTS}/files/test_failing_calls.py",),
        "A file that cannot be looked for is an error, and not a missing file.",
    ),
    Mutant(
        "local-links-followed",
        f"{_FILES}/local.py",
        "mode = os.lstat(path).st_mode",
        "mode = os.stat(path).st_mode",
        (f"{_TESTS}/store/test_hostile.py",),
        "A link in a checkpoint makes no load read, and no cleanup delete, files elsewhere.",
    ),
    Mutant(
        "retried-create-takes-other-file",
        f"{_FILES}/retry.py",
        "if not call.is_retry or self.wrapped.read(path) != data:",
        "if not call.is_retry:",
        (f"{_TESTS}/files/test_retry.py",),
        "A log entry of another query is not taken for the one whose answer was lost.",
    ),
    Mutant(
        "retried-delete-fails",
        f"{_FILES}/retry.py",
        "            except FileNotFoundError:\n                if not call.is_retry:\n                    "
        "raise",
        "            except FileNotFoundError:\n                if call.is_retry:\n                    raise",
        (f"{_TESTS}/files/test_retry.py",),
        "A deletion whose answer was lost has succeeded.",
    ),
    Mutant(
        "cancelled-commit-is-merged",
        "spark_statestore/store/commit.py",
        "must not follow its successor.\n        check_cancelled()",
        "must not follow its successor.\n        pass",
        ("tests/unit/store/test_merged_commit.py::test_commit_that_was_cancelled_is_not_merged",),
        "A commit that was cancelled while storage hung is not published with the next batch.",
    ),
    Mutant(
        "late-attempt-beside-the-next-version",
        "spark_statestore/storage/merged_files.py",
        "for logical in _first_of_each_version(objects):",
        "for logical in list(_first_of_each_version(objects))[-1:]:",
        (_LATE,),
        "No version of a publication replaces one that Spark has committed, in format v1.",
    ),
    Mutant(
        "late-attempt-of-a-run-that-has-just-published",
        "spark_statestore/storage/merged_files.py",
        "if is_known or not is_owned or logical.checkpoint.version < newest:",
        "if is_known or not is_owned:",
        (_LATE,),
        "A late attempt is refused as well if that of before has a file of its own.",
    ),
    Mutant(
        "retry-after-cancellation",
        f"{_FILES}/retry.py",
        "time.sleep(seconds)\n        check_cancelled()",
        "time.sleep(seconds)\n        heartbeat()",
        (f"{_TESTS}/files/test_retry.py",),
        "A request that was cancelled while storage failed writes nothing later.",
    ),
    Mutant(
        "retry-not-of-throttling",
        f"{_FILES}/transient.py",
        "_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}",
        "_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 504}",
        (f"{_TESTS}/files/test_retry.py",),
        "A query survives a service that throttles it.",
    ),
    Mutant(
        "inexclusive-storage-unnoticed",
        "spark_statestore/storage/metadata_streams.py",
        "if checkpoint is not None and checkpoint.id is None:",
        "if checkpoint is not None and checkpoint.id is not None:",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "A service that replaces metadata which is created exclusively is refused.",
    ),
    Mutant(
        "inexclusive-storage-of-merged-files",
        "spark_statestore/storage/physical_files.py",
        "require_exclusive_creation(self._files, self.path(name), encoded.parts)",
        "self._files.url(self.path(name))",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "A service that replaces a file of a batch which is created exclusively is refused.",
    ),
    Mutant(
        "disconnected-request-goes-on",
        "spark_statestore/files/request_context.py",
        "if self._cancelled or not is_connected():",
        "if self._cancelled and not is_connected():",
        ("tests/unit/files/test_request_context.py",),
        "A request whose task has given up publishes nothing.",
    ),
    Mutant(
        "deadline-never-fires",
        f"{_FILES}/request_context.py",
        "if self._cancelled or self._busy_since is None or now - self._busy_since <= self.limit:",
        "if self._cancelled or self._busy_since is None or self._busy_since - now <= self.limit:",
        (f"{_TESTS}/files/test_request_context.py",),
        "A batch fails after storageTimeoutSeconds of a hung storage, and can be run again.",
    ),
    Mutant(
        "object-create-overwrites",
        f"{_FILES}/object_store.py",
        'self._put(path, _octets(data), len(data), "create")',
        'self._put(path, _octets(data), len(data), "overwrite")',
        (f"{_TESTS}/files/test_object_store.py::TestGcs",),
        "Of two queries with one checkpoint on an object store, the second one fails.",
    ),
    Mutant(
        "object-of-two-versions",
        "spark_statestore/files/object_store.py",
        "self._data, _, _ = self._files.read_range(self._path, span, self._version)",
        "self._data, _, _ = self._files.read_range(self._path, span, None)",
        (
            "tests/unit/files/test_object_store.py::test_open_input_refuses_a_file_that_was_replaced_meanwhile",
        ),
        "An object that is replaced while it is read is an error, and not a mixture of both.",
    ),
    Mutant(
        "object-missing-bucket-taken-for-absence",
        f"{_FILES}/object_store_errors.py",
        "if isinstance(error, FileNotFoundError) and code in _ABSENT:",
        "if isinstance(error, FileNotFoundError):",
        (f"{_TESTS}/files/test_object_store.py::test_failed_upload_does_not_take_another_file_for_its_own",),
        "A missing bucket is reported, and does not look like a checkpoint without files.",
    ),
    Mutant(
        "object-signature-in-message",
        f"{_FILES}/object_store_errors.py",
        '_QUERY.sub(r"\\1", str(error))',
        "str(error)",
        (f"{_TESTS}/files/test_object_store_options.py",),
        "Error messages and logs do not show the signature of a URL.",
    ),
    Mutant(
        "remote-error-taken-for-absence",
        f"{_FILES}/remote.py",
        '            return str(self._info(path)["type"])\n        except FileNotFoundError:',
        '            return str(self._info(path)["type"])\n        except OSError:',
        (f"{_TESTS}/files/test_failing_calls.py",),
        "A file that a driver of fsspec cannot look for is an error, and not a missing file.",
    ),
    Mutant(
        "password-in-message",
        f"{_FILES}/urls.py",
        "secret[1] + '...@' + text[secret.end() :]",
        "text",
        (f"{_TESTS}/files/test_files.py",),
        "An error about a password in a URL does not show the password.",
    ),
)

_OF_BACKEND: Final = (
    Mutant(
        "process-of-another-user-is-served",
        "spark_statestore/backend/handshake.py",
        "if user is not None and user != os.geteuid():",
        "if user is not None and user == os.geteuid() + 1:",
        ("tests/unit/backend/test_handshake.py",),
        "A process of another user that reaches the socket is refused.",
    ),
    Mutant(
        "handshake-without-deadline",
        f"{_BACKEND}/handshake.py",
        "frames.deadline = time.monotonic() + HANDSHAKE_TIMEOUT",
        "frames.deadline = None",
        (f"{_TESTS}/backend/test_handshake.py",),
        "A process that connects and sends a byte now and then does not occupy the backend for ever.",
    ),
    Mutant(
        "socket-directory-of-group",
        "spark_statestore/backend/handshake.py",
        "if status.st_uid != os.geteuid() or mode & 0o077:",
        "if status.st_uid != os.geteuid() or mode & 0o007:",
        ("tests/unit/backend/test_handshake.py",),
        "The backend refuses a socket directory that users of its group can enter.",
    ),
    Mutant(
        "temporary-directory-of-others",
        "spark_statestore/temporary.py",
        "if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:",
        "if status.st_uid != os.geteuid():",
        (f"{_TESTS}/test_temporary.py",),
        "The removal of abandoned directories touches only those that no other user could fill.",
    ),
    Mutant(
        "frames-unchecked",
        f"{_BACKEND}/protocol.py",
        "if kind is not Kind.DATA and zlib.crc32(payload) != checksum:",
        "if kind is Kind.CONTROL and zlib.crc32(payload) != checksum:",
        (f"{_TESTS}/backend/test_protocol.py",),
        "A handle or metadata that is damaged on its way between the processes is refused.",
    ),
    Mutant(
        "cleanup-of-newest-version",
        f"{_BACKEND}/protocol.py",
        'request["retainFrom"] > request["version"]:',
        'request["retainFrom"] > request["version"] + 1:',
        (f"{_TESTS}/backend/test_bad_requests.py",),
        "No cleanup discards the newest version, whatever it is asked for.",
    ),
    Mutant(
        "storage-timeout-ignored",
        f"{_BACKEND}/supervision.py",
        'return max(1.0, float(options["storageTimeoutSeconds"]))',
        "return max(1.0, float(DEFAULT_STORAGE_TIMEOUT))",
        (f"{_TESTS}/backend/test_supervision.py",),
        "The option storageTimeoutSeconds takes effect.",
    ),
    Mutant(
        "cancelled-request-answers",
        f"{_BACKEND}/supervision.py",
        "# Raises if the request was cancelled; after it, the request can no longer be.\n        "
        "self.context.suspend()",
        "# Raises if the request was cancelled; after it, the request can no longer be.\n        "
        "self.context.heartbeat()",
        (f"{_TESTS}/backend/test_supervision.py",),
        "A connection has one answer for each request, also if storage answers just after the timeout.",
    ),
    Mutant(
        "permit-kept-by-hung-request",
        f"{_BACKEND}/supervision.py",
        "self._context.on_cancel(release)",
        "self._context.on_cancel(self._context.heartbeat)",
        (f"{_TESTS}/backend/test_supervision.py",),
        "Requests that hang do not keep later ones from being served.",
    ),
    Mutant(
        "unpublished-commits-dropped",
        f"{_BACKEND}/handlers.py",
        "if commit.merged:\n            self._stores.keep_unpublished",
        "if commit.merged and commit.metadata is not None:\n            self._stores.keep_unpublished",
        (f"{_TESTS}/backend/test_open_stores.py",),
        "A commit that waits for the end of its batch is kept however many stores are opened meanwhile.",
    ),
    Mutant(
        "unpublished-commits-of-ended-run",
        f"{_BACKEND}/open_stores.py",
        "self._unpublished -= ended",
        "self._unpublished &= ended",
        (f"{_TESTS}/backend/test_open_stores.py",),
        "The end of one query drops no commits of another one.",
    ),
    Mutant(
        "log-entry-of-another-query",
        f"{_BACKEND}/checkpoint_files.py",
        "if not is_repeated or files.read(path) != data:",
        "if not is_repeated:",
        (f"{_TESTS}/backend/test_checkpoint_files.py",),
        "A second query with one checkpoint is refused, also when its backend was replaced meanwhile.",
    ),
    Mutant(
        "log-entry-read-before-it-is-durable",
        f"{_BACKEND}/checkpoint_files.py",
        'if request["start"] == 0:\n                _make_durable(files, path)',
        'if request["start"] != 0:\n                _make_durable(files, path)',
        (f"{_TESTS}/backend/test_checkpoint_files_faults.py::test_synced_logs_survive_a_power_loss",),
        "With fsync, a log entry that the driver has relied on does not vanish in a power failure.",
    ),
    Mutant(
        "backend-outlives-jvm",
        "spark_statestore/child_process.py",
        "os._exit(0)",
        "sys.exit(0)",
        (f"{_TESTS}/backend/test_server.py::test_backend_ignores_interrupts_and_ends_with_its_input",),
        "The backend ends with its JVM, and does not write to checkpoints afterwards.",
    ),
)

_VIEWS: Final = f"{_TESTS}/storage/test_merged_views.py"

_OF_MERGED_FILES: Final = (
    Mutant(
        "copy-that-is-listed-while-it-is-written",
        "spark_statestore/storage/merged_index.py",
        "        if listed is not None:",
        "        if listed is None:",
        (f"{_VIEWS}::test_copy_that_is_listed_while_it_is_written_is_not_deleted",),
        "A copy of merged files stays, whichever thread lists the directory meanwhile.",
    ),
)

_OF_WORKERS: Final = (
    Mutant(
        "worker-garbage-not-frozen",
        "spark_statestore/worker_daemon.py",
        "if len(sys.modules) != modules:",
        "if len(sys.modules) == modules:",
        ("tests/spark/test_worker_daemon.py",),
        "Python workers of Spark do not search all modules for garbage after each task.",
    ),
)

MUTANTS: Final = (*_OF_FILES, *_OF_BACKEND, *_OF_MERGED_FILES, *_OF_WORKERS)

"""Checkpoints of a model that several processes divide among them: each writes what it has, while training continues.

Nothing is sent but what is written by whom. The files are safetensors and JSON, by `torch.distributed.checkpoint`.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save

from heddle.parallel.ranks import SAVES
from heddle.weights.checkpoints import shard_name
from heddle.weights.files import Entry, WriteError, entry_of, reporting_os_errors

Directory = Callable[[dict[str, Entry]], AbstractContextManager[Path]]


class ShardWriter(HuggingFaceStorageWriter):
    """Writes each process's shards into one hidden directory, which becomes a checkpoint once all have written.

    torch calls `prepare_global_plan` and `finish` on the process that leads, and tells all processes of an error in one.

    Args:
        target: the checkpoint.
        directory: makes the directory to fill, given entries of its manifest.
        files: for each tensor, the name of the file that one process alone would write it to.
    """

    def __init__(self, target: Path, directory: Directory, files: Mapping[str, str]) -> None:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(files.values()), start=1)}
        indices = {key: numbers[name] for key, name in files.items()}
        super().__init__(str(target.parent), fqn_to_index_mapping=indices, save_distributed=True)
        self.per_thread_copy_ahead = 0  # what is written is in the host's memory, so the device is left alone
        self.target, self.directory, self.files = target, directory, files
        self.entries = dict[str, Entry]()
        self.filling = ExitStack()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """What this process writes; it needs the folder of checkpoints."""
        with reporting_os_errors(self.target):
            return super().prepare_local_plan(plan)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the directory, and tell every process where it is."""
        folder = str(self.filling.enter_context(self.directory(self.entries)))
        prepared = super().prepare_global_plan(plans)
        return [replace(plan, storage_data={**plan.storage_data, "folder": folder}) for plan in prepared]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[Any]:
        """Write this process's shards, and give the entries of their manifest to the process that leads."""
        folder, rank = Path(plan.storage_data["folder"]), plan.storage_data["shard_index"] - 1
        # The process that leads may not have all tensors.
        plan = replace(plan, storage_data={**plan.storage_data, "fqn_to_index_mapping": self.fqn_to_index_mapping})
        self.path, entries = folder, torch.futures.Future[Any]()
        with reporting_os_errors(self.target):
            written = super().write_data(plan, planner).wait()
            names = {each.storage_data.relative_path: self.files[each.index.fqn] for each in written}
            shards = [(folder / path).rename(folder / shard_name(name, rank)) for path, name in names.items()]
            entries.set_result({shard.name: entry_of(shard) for shard in shards})
        return entries

    def finish(self, metadata: Metadata, results: list[Any]) -> None:
        """Every process has written: complete the directory, and give it its name."""
        for entries in results:
            self.entries |= entries
        self.filling.close()

    def abandon(self, error: BaseException) -> None:
        """Remove the directory, if this process has made it."""
        self.filling.__exit__(type(error), error, error.__traceback__)


class Saver:
    """Saves checkpoints in the background, one at a time, over connections of its own. Every process makes one.

    Args:
        seconds: how long a process waits for another to write.
    """

    def __init__(self, seconds: float) -> None:
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds), group_desc=SAVES)
        self.saving: Future[None] | None = None
        self.writer: ShardWriter | None = None

    def start(self, target: Path, tensors: Mapping[str, Mapping[str, Tensor]], directory: Directory) -> None:
        """Copy tensors into the host's memory and begin to write them; first, wait for the checkpoint in flight.

        Args:
            target: the checkpoint.
            tensors: by name, for each file that one process alone would write.
            directory: makes the directory to fill, given entries of its manifest; the process that leads calls it.

        Raises:
            HeddleError: the checkpoint in flight cannot be written.
        """
        self.wait()
        files = {key: file for file, each in tensors.items() for key in each}
        stager = DefaultStager(StagingOptions(False, False, False, False))
        staged = stager.stage({key: tensor for each in tensors.values() for key, tensor in each.items()})
        self.saving, self.writer = Future(), ShardWriter(target, directory, files)
        # It may wait for a process that hangs, for which this one must not wait to end.
        Thread(target=self._write, args=(self.saving, self.writer, staged), name="checkpoint", daemon=True).start()

    def _write(self, saving: "Future[None]", writer: ShardWriter, staged: Any) -> None:
        try:
            save(staged, storage_writer=writer, process_group=self.group)
        except BaseException as error:
            writer.abandon(error)
            saving.set_exception(error)
        else:
            saving.set_result(None)

    @property
    def failed(self) -> bool:
        """Whether the checkpoint in flight cannot be written."""
        return self.saving is not None and self.saving.done() and self.saving.exception() is not None

    def wait(self) -> None:
        """Wait for the checkpoint in flight.

        Raises:
            HeddleError: it cannot be written; the line names the process.
        """
        self.close()
        saving, self.saving = self.saving, None
        try:
            if saving is not None:
                saving.result()
        except CheckpointException as failure:
            rank, (error, _) = min(failure.failures.items(), key=lambda each: each[0])
            problem = error.problem if isinstance(error, WriteError) else f"cannot save: {error!r}"
            raise WriteError(f"rank {rank}: {problem}") from error

    def close(self, seconds: float | None = None) -> None:
        """Wait until nothing is written any more, whether or not it succeeds.

        Args:
            seconds: how long, if another process is lost. What is half written then is removed.
        """
        if self.saving is not None and wait((self.saving,), seconds).not_done:
            assert self.writer is not None
            self.writer.abandon(TimeoutError())
            self.saving = None

"""The trials of candidates on the devices of a run."""

from autotune.tuner.trials.background_pool import (
    BackgroundPool,
    is_tried_apart,
    is_tried_last,
    is_whole,
    num_cores,
    workers_beside,
)
from autotune.tuner.trials.device_queues import DeviceQueues, WantedTrial, known_times, record_result, record_unfinished
from autotune.tuner.trials.kernel_trials import POLL_SECONDS, KernelTrials
from autotune.tuner.trials.library_trials import LibraryTrials

"""Training code that `train` and `pretrain` share: settings, checkpoints, processes and the Trainer."""

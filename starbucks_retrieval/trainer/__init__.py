"""What the stages that train share: flags of transformers, checkpoints, processes, and a trainer that logs parts."""

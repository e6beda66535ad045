"""What runs and an account have used, and what a run will use: sums over Slurm's accounts and runs'
own records. Nothing here asks Slurm or reads a file."""

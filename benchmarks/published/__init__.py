"""Steps of runs that others have published, beside what `plan` says of them."""

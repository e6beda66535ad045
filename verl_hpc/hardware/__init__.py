"""GPUs and nodes: their sizes and speeds, from data sheets, site profiles or measurements."""

"""The first hour on a GPU, in steps that resume. The modules that start steps need no package."""

"""The functions that rows of the table name: they make our settings of verl's keys."""

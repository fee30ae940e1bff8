"""What a store on a disk decides, without I/O: rows, regions, admission, records."""

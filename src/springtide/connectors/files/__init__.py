"""Folders of files as a stream: CSV, JSON lines and Parquet, on local paths and in object stores."""

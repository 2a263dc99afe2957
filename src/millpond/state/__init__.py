"""One operator's state in one shard: a kernel store, the files it rests on, and what a batch makes due."""

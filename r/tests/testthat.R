library(testthat)
library(silomix)
test_check("silomix")

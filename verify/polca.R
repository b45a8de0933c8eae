# Rscript polca.R TABLE.csv CLASSES: the best of 20 starts of poLCA (Linzer and Lewis, 2011).
suppressMessages(library(poLCA))
words <- commandArgs(trailingOnly = TRUE)
classes <- as.integer(words[2])
table <- read.csv(words[1], colClasses = "character", na.strings = "", check.names = FALSE)
levels <- lapply(table, function(column) sort(unique(column[!is.na(column)]), method = "radix"))
codes <- as.data.frame(mapply(match, table, levels))
names(codes) <- paste0("x", seq_along(codes))
formula <- as.formula(paste("cbind(", paste(names(codes), collapse = ","), ") ~ 1"))
set.seed(1)
fit <- poLCA(formula, codes, nclass = classes, nrep = 20, maxiter = 20000, tol = 1e-10,
             na.rm = FALSE, calc.se = FALSE, verbose = FALSE)
line <- function(quantity, cluster, value)
  cat(sprintf('"%s",%s,%s,\n', quantity, cluster, format(value, digits = 12)), sep = "")
line("version", "", as.character(packageVersion("poLCA")))
line("log likelihood", "", fit$llik)
for (k in seq_len(classes)) {
  line("weight", k, fit$P[k])
  for (q in seq_along(levels)) for (l in seq_along(levels[[q]]))
    line(paste0(names(table)[q], "=", levels[[q]][l]), k, fit$probs[[q]][k, l])
}

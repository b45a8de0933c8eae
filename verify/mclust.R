# Rscript mclust.R TABLE.csv COMPONENTS KIND: mclust (Scrucca et al., 2016) with its own starts.
# KIND is gaussian (VVI: variables independent in a cluster) or gaussian-full (VVV).
suppressMessages(library(mclust))
words <- commandArgs(trailingOnly = TRUE)
components <- as.integer(words[2])
table <- read.csv(words[1], check.names = FALSE)
model <- if (ncol(table) == 1) "V" else if (words[3] == "gaussian") "VVI" else "VVV"
fit <- Mclust(table, G = components, modelNames = model, verbose = FALSE,
              control = emControl(tol = c(1e-12, 1e-12), itmax = c(20000, 20000)))
# Mclust prints the likelihood before its last M step
p <- fit$parameters
fit$loglik <- sum(dens(data = data.matrix(table), modelName = model, parameters = p, logarithm = TRUE))
line <- function(quantity, cluster, value)
  cat(sprintf('"%s",%s,%s,\n', quantity, cluster, format(value, digits = 12)), sep = "")
line("version", "", as.character(packageVersion("mclust")))
line("log likelihood", "", fit$loglik)
for (k in seq_len(components)) {
  line("weight", k, p$pro[k])
  for (i in seq_along(table)) {
    line(paste("mean", names(table)[i]), k, matrix(p$mean, ncol = components)[i, k])
    for (j in seq_len(i)) if (i == j || model == "VVV") {
      value <- if (model == "V") p$variance$sigmasq[k] else p$variance$sigma[i, j, k]
      line(paste("covariance", names(table)[i], names(table)[j]), k, value)
    }
  }
}

#' Install the Python package
#'
#' Makes a virtual environment, in which the other functions then find silomix. Restart R afterwards
#' if Python was in use.
#' @param package What pip installs: a name, a wheel, or the source folder.
#' @param envname The virtual environment.
#' @param python A Python of version 3.11 or newer.
#' @param ... More for `reticulate::virtualenv_install()`, such as `pip_options`.
#' @export
install_silomix <- function(package = "silomix", envname = "r-silomix", python = NULL, ...) {
  if (!reticulate::virtualenv_exists(envname)) {
    reticulate::virtualenv_create(envname, python = python)
  }
  reticulate::virtualenv_install(envname, package, ...)
}

.onLoad <- function(libname, pkgname) {
  reticulate::use_virtualenv("r-silomix", required = FALSE)
}

#' Cluster the rows of a data frame
#'
#' Clusters are called "0", "1" and so on, the largest first, as in silomix's reports.
#' @param data A data frame: factors, characters and logicals are categories, numbers are numbers
#'   or, if they have few whole values, levels. `NA` is a missing cell, which is left out.
#' @param silo The column that names each row's silo; without it all rows are one.
#' @param ... Settings of Python's `silomix.fit`, such as `seed`, `clusters`, `variables`,
#'   `iterations`, `kinds = c(visits = "poisson")` or `frequency`.
#' @return An object with `clusters` and `profiles` (data frames with intervals), `labels` (a factor;
#'   a table of patterns has one for each repeated row), `trusted`, `verdict`, and `posterior`, the
#'   Python object, which has more: `fit$posterior$report("report.html")`.
#' @examples
#' \dontrun{
#' fit <- silomix_fit(carcinoma, clusters = 3, seed = 1)
#' summary(fit)
#' }
#' @export
silomix_fit <- function(data, silo = NULL, ...) {
  settings <- lapply(list(...), as_setting)
  given <- c(list(to_pandas(data), silo = silo), settings)
  make_fit(do.call(python("silomix")$fit, given), silo)
}

#' Read a posterior that `fit$posterior$save(path)`, or Python, has saved
#' @param path The file.
#' @param silo The column that names each row's silo in tables to predict.
#' @export
silomix_load <- function(path, silo = NULL) {
  make_fit(python("silomix")$load(path.expand(path)), silo)
}

python <- function(module) {
  tryCatch(reticulate::import(module, convert = FALSE), error = function(reason) {
    stop("Python's ", module, " cannot be imported: run install_silomix(), or name a Python that ",
         "has it with reticulate::use_python()\n", conditionMessage(reason), call. = FALSE)
  })
}

make_fit <- function(posterior, silo) {
  # arrays travel as lists of numbers and frames as JSON, which every version of reticulate reads
  judged <- posterior$diagnostics
  fit <- list(
    posterior = posterior, silo = silo,
    clusters = to_frame(posterior$cluster_sizes(frame_like = "pandas")),
    profiles = to_frame(posterior$profiles(frame_like = "pandas")),
    trusted = to_r(judged$trusted), verdict = to_r(judged$verdict),
    text = to_r(posterior$`__repr__`())
  )
  assigned <- to_r(python("builtins")$hasattr(posterior$assignment, "labels"))
  if (assigned) fit$labels <- to_factor(to_r(posterior$labels$tolist()), fit)
  structure(fit, class = "silomix_fit")
}

to_r <- function(object) reticulate::py_to_r(object)

to_frame <- function(frame) {
  frame <- jsonlite::fromJSON(to_r(frame$to_json(orient = "records", double_precision = 15L)))
  frame$cluster <- factor(frame$cluster)
  frame
}

to_factor <- function(labels, fit) factor(unlist(labels), levels = levels(fit$clusters$cluster))

as_setting <- function(value) {
  if (!is.null(names(value))) return(lapply(as.list(value), as_setting))
  whole <- is.numeric(value) && all(is.finite(value) & value == round(value) & abs(value) < 2^31)
  if (whole) value <- as.integer(value)
  if (length(value) > 1) as.list(value) else value
}

to_pandas <- function(data) {
  if (!is.data.frame(data)) stop("data is of class ", class(data)[1], "; give a data frame")
  columns <- lapply(names(data), function(name) to_column(data[[name]], name))
  python("pandas")$DataFrame(reticulate::r_to_py(stats::setNames(columns, names(data))))
}

to_column <- function(x, name) {
  if (is.factor(x)) {
    codes <- ifelse(is.na(x), -1L, as.integer(x) - 1L)
    return(python("pandas")$Categorical$from_codes(as.list(codes), as.list(levels(x))))
  }
  if (!is.null(attr(x, "class")) || !(is.numeric(x) || is.character(x) || is.logical(x))) {
    stop("column '", name, "' is of class ", class(x)[1],
         "; make it a factor, numbers, characters or logicals", call. = FALSE)
  }
  cells <- as.list(if (is.numeric(x)) as.numeric(x) else x)
  cells[is.na(x)] <- list(NULL)
  # Python's None would make numbers objects
  if (is.numeric(x)) cells[is.na(x)] <- list(NaN)
  cells
}

#' @export
print.silomix_fit <- function(x, ...) {
  cat(x$text, "\n", sep = "")
  invisible(x)
}

#' @export
summary.silomix_fit <- function(object, ...) {
  structure(object[c("clusters", "profiles", "trusted", "verdict")], class = "summary.silomix_fit")
}

#' @export
print.summary.silomix_fit <- function(x, digits = 2, ...) {
  shown <- c("mean", "lower", "upper")
  cat("Shares of the rows (", x$clusters$interval[1], "):\n", sep = "")
  print(cbind(x$clusters["cluster"], round(x$clusters[shown], digits)), row.names = FALSE)
  cat("\nProfiles, posterior means:\n")
  print(round(wide(x$profiles), digits))
  cat("\n", x$verdict, "\n", sep = "")
  invisible(x)
}

# (variable = level, cluster), posterior means
wide <- function(profiles) {
  line <- paste(profiles$variable, profiles$level_name, sep = " = ")
  line <- factor(line, levels = unique(line))
  tapply(profiles$mean, list(line, profiles$cluster), mean)
}

#' Draw the clusters
#' @param x What `silomix_fit()` returned.
#' @param type "profiles": a heat map of posterior means, numbers scaled from their lowest cluster to
#'   their highest; "sizes": shares of the rows with their intervals.
#' @param ... More for `graphics::image()` or `graphics::plot()`.
#' @export
plot.silomix_fit <- function(x, type = c("profiles", "sizes"), ...) {
  if (match.arg(type) == "sizes") {
    at <- x$clusters
    place <- seq_len(nrow(at))
    graphics::plot(place, at$mean, ylim = c(0, max(at$upper)), xaxt = "n", pch = 19,
                   xlab = "cluster", ylab = "share of the rows", ...)
    graphics::segments(place, at$lower, place, at$upper)
    graphics::axis(1, place, at$cluster)
    return(invisible(x))
  }
  means <- wide(x$profiles)
  number <- !(rowSums(means < 0 | means > 1) == 0)
  means[number, ] <- t(apply(means[number, , drop = FALSE], 1, function(m) {
    (m - min(m)) / max(max(m) - min(m), 1e-12)
  }))
  rows <- nrow(means)
  old <- graphics::par(mar = c(4, 2 + max(nchar(rownames(means))) / 2, 2, 1))
  on.exit(graphics::par(old))
  graphics::image(seq_len(ncol(means)), seq_len(rows), t(means[rows:1, , drop = FALSE]),
                  zlim = c(0, 1), col = rev(grDevices::hcl.colors(64, "Blues")), axes = FALSE,
                  xlab = "cluster", ylab = "", ...)
  graphics::axis(1, seq_len(ncol(means)), colnames(means))
  graphics::axis(2, seq_len(rows), rev(rownames(means)), las = 1, tick = FALSE)
  invisible(x)
}

#' Find the clusters of rows
#' @param object What `silomix_fit()` returned.
#' @param newdata A data frame with the same columns.
#' @param type "class": the most probable cluster, a factor; "prob": a matrix, a column per cluster.
#' @param ... Not used.
#' @export
predict.silomix_fit <- function(object, newdata, type = c("class", "prob"), ...) {
  table <- to_pandas(newdata)
  flat <- object$posterior$membership(table, silo = object$silo)$ravel()$tolist()
  names <- levels(object$clusters$cluster)
  probability <- matrix(unlist(to_r(flat)), ncol = length(names), byrow = TRUE)
  colnames(probability) <- names
  if (match.arg(type) == "prob") return(probability)
  to_factor(names[max.col(probability, "first")], object)
}

#' Draws for the package posterior, by chain
#'
#' Shares are called `weights[cluster]`, parameters of the profiles `profiles[cluster,variable=level]`.
#' @param x What `silomix_fit()` returned.
#' @param ... Not used.
#' @exportS3Method posterior::as_draws
as_draws.silomix_fit <- function(x, ...) {
  np <- python("numpy")
  places <- python("silomix.posterior.chains")$find_chains(x$posterior)
  size <- unlist(to_r(places$shape))
  clusters <- levels(x$clusters$cluster)
  named <- unique(x$profiles[c("variable", "level_name")])
  named <- paste(named$variable, named$level_name, sep = "=")
  by_chain <- function(draws) {
    flat <- draws$reshape(size[1] * size[2], -1L)$take(places, 0L)
    # R's first axis runs fastest, Python's last
    flat <- np$transpose(flat, reticulate::tuple(2L, 0L, 1L))$ravel()$tolist()
    array(unlist(to_r(flat)), c(size[2], size[1], length(flat) / prod(size)))
  }
  parts <- list(by_chain(x$posterior$weights), by_chain(x$posterior$parameters))
  variables <- c(
    paste0("weights[", clusters, "]"),
    paste0("profiles[", rep(clusters, each = length(named)), ",", named, "]")
  )
  both <- array(unlist(parts), c(size[2], size[1], length(variables)))
  dimnames(both) <- list(NULL, NULL, variables)
  posterior::as_draws_array(both)
}
